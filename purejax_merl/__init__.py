"""Evolution and gradients together, for teams of agents, compiled."""

from purejax_merl import evaluation
from purejax_merl.agents.base import AbstractActor, AbstractCritic
from purejax_merl.api import FinalState, merl_train
from purejax_merl.build import build_run
from purejax_merl.coexist import merl_coexist, merl_coexist_compiled
from purejax_merl.config import RunConfig, preset
from purejax_merl.deploy import TeamPolicy, load
from purejax_merl.envs.base import AbstractTeamEnv
from purejax_merl.evolve.base import AbstractStrategy
from purejax_merl.evolve.genome import flatten, module_theta, set_module_theta
from purejax_merl.evolve.seed import ESConfig, es_step
from purejax_merl.types import AbstractScore, Policy, Transition, View

__version__ = "0.1.0"

__all__ = [
    "AbstractActor",
    "AbstractCritic",
    "AbstractScore",
    "AbstractStrategy",
    "AbstractTeamEnv",
    "ESConfig",
    "FinalState",
    "Policy",
    "RunConfig",
    "TeamPolicy",
    "Transition",
    "View",
    "build_run",
    "es_step",
    "evaluation",
    "flatten",
    "load",
    "merl_coexist",
    "merl_coexist_compiled",
    "merl_train",
    "module_theta",
    "preset",
    "set_module_theta",
]
