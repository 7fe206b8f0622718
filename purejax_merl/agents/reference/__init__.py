"""The reference system's networks: convolutions over grid planes, message passing, skill heads."""
