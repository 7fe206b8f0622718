"""Run-time services: run directories, model files, statistics, cache, progress, description.

In: records, trees of arrays, compiled programs. Out: files and lines for people.
Axis: wall-clock; host side only, never inside jit. May import: types, config.
"""
