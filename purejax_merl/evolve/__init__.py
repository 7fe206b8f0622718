"""Evolution: strategies that see flat genomes and fitness, nothing else.

In: genome, fitness, maximised. Out: populations and a better genome.
Axis: member P. May import: only this folder; evosax lazily.
"""

from .base import AbstractStrategy, antithetic_noise
from .cem import CEM, CEMState
from .evosax import EvosaxState, EvosaxStrategy, make_evosax, valid_names
from .genome import flatten, module_theta, set_module_theta
from .nes import NES, AdamMoments, NESState
from .ranking import centered_ranks, elite_weights, finite_summary, informative
from .seed import ESConfig, es_step, make_strategy

__all__ = [
    "CEM",
    "NES",
    "AbstractStrategy",
    "AdamMoments",
    "CEMState",
    "ESConfig",
    "EvosaxState",
    "EvosaxStrategy",
    "NESState",
    "antithetic_noise",
    "centered_ranks",
    "elite_weights",
    "es_step",
    "finite_summary",
    "flatten",
    "informative",
    "make_evosax",
    "make_strategy",
    "module_theta",
    "set_module_theta",
    "valid_names",
]
