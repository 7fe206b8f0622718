"""The coverage world: cover every free cell and stay connected."""

from purejax_merl.envs.coverage.env import CoverageEnv as CoverageEnv
from purejax_merl.envs.coverage.types import CoverageScore as CoverageScore
from purejax_merl.envs.coverage.types import CoverageState as CoverageState
