"""The gradient half: PPO with a centralised critic. It sees rollouts, never an environment."""
