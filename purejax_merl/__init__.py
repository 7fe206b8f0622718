"""Evolution and gradients together, for teams of agents, compiled."""

from purejax_merl import evaluation as evaluation
from purejax_merl.agents.base import AbstractActor as AbstractActor
from purejax_merl.agents.base import AbstractCritic as AbstractCritic
from purejax_merl.api import FinalState as FinalState
from purejax_merl.api import merl_train as merl_train
from purejax_merl.build import build_run as build_run
from purejax_merl.coexist import merl_coexist as merl_coexist
from purejax_merl.coexist import merl_coexist_compiled as merl_coexist_compiled
from purejax_merl.config import RunConfig as RunConfig
from purejax_merl.config import preset as preset
from purejax_merl.deploy import TeamPolicy as TeamPolicy
from purejax_merl.deploy import load as load
from purejax_merl.envs.base import AbstractTeamEnv as AbstractTeamEnv
from purejax_merl.evolve.base import AbstractStrategy as AbstractStrategy
from purejax_merl.evolve.genome import flatten as flatten
from purejax_merl.evolve.genome import module_theta as module_theta
from purejax_merl.evolve.genome import set_module_theta as set_module_theta
from purejax_merl.evolve.seed import ESConfig as ESConfig
from purejax_merl.evolve.seed import es_step as es_step
from purejax_merl.types import AbstractScore as AbstractScore
from purejax_merl.types import Policy as Policy
from purejax_merl.types import Transition as Transition
from purejax_merl.types import View as View

__version__ = "0.1.0"
