"""Every number of a run: frozen dataclasses, one per room, checked on construction.

In: flags or JSON. Out: a `RunConfig` that rebuilds the run.
Axis: none. No JAX here, so that a wrong flag is refused before anything is loaded or compiled.
May import: nothing of ours.
"""

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any, Literal

Switch = Literal["off", "on"]
HEADS = 4
"""Attention heads of the reference network's `multihead` messages."""
TrackerName = Literal["none", "tensorboard", "wandb"]
Views = Literal["absolute", "relative"]
Terrain = Literal["open", "walls", "rooms", "clutter", "pillars", "mixed", "crowded_mix"]


class ConfigError(ValueError):
    """A field is out of range or does not fit another one; the message names it and the cure."""


def flag(name: str) -> str:
    """The command line's spelling of a field."""
    return "--" + name.replace("_", "-")


def refuse(name: str, value: object, must: str) -> typing.NoReturn:
    """Raises the one error of this file: what was given and what it must be."""
    raise ConfigError(f"`{flag(name)} {value}` must {must}")


def _at_least(section: object, minimum: int | float, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        if not (math.isfinite(value) and value >= minimum):
            refuse(name, value, f"be finite and at least {minimum:g}.")


def _above(section: object, bound: int | float, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        if not (math.isfinite(value) and value > bound):
            refuse(name, value, f"be finite and greater than {bound:g}.")


def _share(section: object, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        if not 0 <= value <= 1:
            refuse(name, value, "lie between 0 and 1.")


@dataclasses.dataclass(frozen=True)
class EnvConfig:
    """The coverage world."""

    grid: int = 16
    """Side of the square grid, in cells."""
    n_agents: int = 4
    """Agents in the team."""
    comm_r: int = 5
    """Communication range: Chebyshev distance in cells."""
    horizon: int = 100
    """Steps per episode."""
    terrain: Terrain = "open"
    """Kind of ground; every free cell can be reached on each."""
    n_obstacles: int | None = None
    """Wall cells of walls, clutter, mixed and crowded_mix (half of them in its mixed); unset: 15 %
    of the cells."""
    rooms: int = 3
    """Rooms of rooms and mixed."""
    pillar_spacing: int = 4
    """Period of the pillars, in cells."""
    pillar_size: int = 2
    """Side of a pillar, in cells."""
    spawn: Literal["cluster", "scatter"] = "cluster"
    """Start in one patch, or anywhere."""
    spawn_radius: int = 2
    """Radius of the patch, in cells."""
    collision: Literal["claim", "share"] = "claim"
    """claim: in index order, nobody enters an occupied cell. share: agents may stand on one
    cell."""
    sense_r: int = 1
    """Radius of sensing, in cells."""
    cover_r: int = 0
    """Radius of the covered footprint, in cells; 0 is the agent's own cell."""
    sense_walls: bool = True
    """Sensed walls enter the belief."""
    sense_free: bool = False
    """Sensed free cells enter the belief as well."""
    w_coverage: float = 1.0
    """Reward per newly covered cell."""
    w_connectivity: float = 0.0
    """Reward per step times the share of teammates within reach over any number of hops."""
    w_collision: float = 0.0
    """Reward per agent on the same cell and step (negative: a penalty)."""
    w_overlap: float = 0.0
    """Penalty per footprint cell that a teammate's footprint holds as well."""
    credit: Literal["first", "each"] = "first"
    """Who is paid for a cell that several reach at once: the lowest index, or each."""
    cost: Literal["bar", "hinge", "margin"] = "bar"
    """Constraint signal: λ₂ at or below the threshold (0/1), its shortfall, or each agent's
    missing degree."""
    cost_threshold: float = 0.5
    """Threshold of the constraint on λ₂."""
    views: Views = "absolute"
    """relative: on any map and in any team as on 16² cells with 4 agents. What is far off counts
    by the map's area, and of the teammates in range the three farthest are seen."""

    def __post_init__(self) -> None:
        _at_least(self, 2, "n_agents", "grid", "pillar_spacing")
        _at_least(self, 1, "comm_r", "horizon", "rooms", "pillar_size")
        _at_least(self, 0, "spawn_radius", "sense_r", "cover_r", "cost_threshold")
        _at_least(self, -1e9, "w_coverage", "w_connectivity", "w_collision", "w_overlap")
        if self.spawn == "cluster" and self.grid <= 2 * self.spawn_radius:
            refuse(
                "grid",
                self.grid,
                f"be larger than twice `--spawn-radius {self.spawn_radius}`; use a larger grid or "
                "`--spawn scatter`.",
            )
        if self.n_agents > self.grid**2 // 2:
            refuse("n_agents", self.n_agents, f"be at most half the {self.grid**2} cells.")
        if self.n_obstacles is not None:
            self._check_obstacles(self.n_obstacles)
        if self.pillar_size >= self.pillar_spacing:
            refuse(
                "pillar_size",
                self.pillar_size,
                f"be smaller than `--pillar-spacing {self.pillar_spacing}`.",
            )
        if self.rooms > self.grid // 2:
            refuse(
                "rooms", self.rooms, f"be at most {self.grid // 2}, half of `--grid {self.grid}`."
            )

    def _check_obstacles(self, number: int) -> None:
        if self.terrain in ("open", "rooms", "pillars"):
            refuse("n_obstacles", number, f"be left out: `--terrain {self.terrain}` has none.")
        if not 0 <= number <= self.grid**2 // 2:
            refuse("n_obstacles", number, f"lie in 0..{self.grid**2 // 2}, half the cells.")

    @property
    def obstacles(self) -> int:
        """`n_obstacles`, or 15 % of the cells."""
        return round(0.15 * self.grid**2) if self.n_obstacles is None else self.n_obstacles


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    """Actor and critic."""

    network: Literal["compact", "reference"] = "compact"
    """compact: an MLP over what an agent knows, choosing moves. reference: convolutions and
    messages, choosing goal cells."""
    width: int = 96
    """Units per layer."""
    depth: int = 2
    """Layers of the trunk."""
    flock: Literal["scripted", "learned"] = "scripted"
    """The flock skill: the world's own, or a learned head."""
    selector: Switch = "on"
    """off: a single learned skill; there is nothing to select and only `--arm gradient` is left."""
    num_skills: int = 3
    """Learned skill heads on a world that brings no skills of its own."""
    first_bias: float = 3.0
    """Logit by which the first skill leads at the start; the reference network has no such
    lead."""
    mp_rounds: int = 2
    """Rounds of messages per step in the reference network."""
    aggregator: Literal["max", "mean", "multihead"] = "max"
    """How an agent of the reference network sums up what it hears."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "width", "depth", "num_skills", "mp_rounds")
        _at_least(self, -1e9, "first_bias")
        if self.network == "reference":
            self._check_reference()
            return
        for name, default in (("mp_rounds", 2), ("aggregator", "max")):
            if getattr(self, name) != default:
                refuse(name, getattr(self, name), "be left out: `--network compact` has none.")

    def _check_reference(self) -> None:
        if self.first_bias:
            must = "be 0 with `--network reference`; take `--preset reference`."
            refuse("first_bias", self.first_bias, must)
        if self.width % HEADS:
            refuse("width", self.width, f"be divisible by {HEADS} with `--network reference`.")


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    """The gradient half."""

    rollouts: int = 32
    """Worlds per PPO step; an episode each."""
    lr: float = 1e-3
    """Adam's learning rate."""
    anneal: Switch = "on"
    """on: learning rate and entropy weights fall linearly to a tenth over the `--outer` rounds."""
    ppo_epochs: int = 4
    """Passes over a rollout."""
    minibatches: int = 8
    """Optimizer steps per pass."""
    clip: float = 0.2
    """PPO's ratio clip ε."""
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """Trace decay of the advantage estimate."""
    skill_entropy: float = 0.01
    """Weight of the selector's entropy, in nats."""
    move_entropy: float = 0.01
    """Weight of the moves' entropy, in nats."""
    max_grad_norm: float = 0.5
    """Norm to which the gradients of actor and critic are clipped, each on its own."""
    disjoint: Switch = "off"
    """on: the selector is frozen under the gradient, so that the two halves touch disjoint
    weights."""
    mechanism: Literal["soft_lambda", "lagrangian", "pid_lagrangian"] = "soft_lambda"
    """Price of the constraint: fixed, or a multiplier that follows the signed violation."""
    price: float = 1.5
    """Reward taken per unit of cost and step; where a multiplier starts."""
    price_lr: float = 0.05
    """Step size of the Lagrangian."""
    cost_limit: float = 0.05
    """Mean cost per step that a multiplier tolerates."""
    congestion: Switch = "off"
    """on: charge for in-range teammates that chose the same skill."""
    congestion_weight: float = 0.5
    """Reward taken per such teammate and step."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "rollouts", "ppo_epochs", "minibatches")
        _above(self, 0, "lr", "clip", "max_grad_norm")
        _at_least(
            self, 0, "skill_entropy", "move_entropy", "price", "price_lr", "congestion_weight"
        )
        _share(self, "gamma", "gae_lambda")
        _at_least(self, 0, "cost_limit")


@dataclasses.dataclass(frozen=True)
class ESSettings:
    """The evolution half."""

    arm: Literal["merl", "gradient", "evolution", "no_injection"] = "merl"
    """Both halves; PPO alone; the strategy alone on the whole actor; both without injection."""
    fitness: Literal["graded", "return"] = "graded"
    """Mean of min(coverage, share of steps with λ₂ > 0.5), or the mean return that PPO
    maximises."""
    pop: int = 16
    """Members per generation, in mirrored pairs."""
    sigma: float = 0.05
    """Standard deviation of the search noise, in units of the weights."""
    es_lr: float = 0.001
    """Step size of nes."""
    es_kind: str = "nes"
    """nes, cem, or the name of an evosax strategy such as SNES or CMA_ES."""
    es_optimizer: Literal["adam", "sgd"] = "adam"
    """What turns nes's gradient into a step."""
    elite_frac: float = 0.25
    """Share of the population that cem keeps."""
    sigma_floor: float = 0.01
    """Smallest standard deviation of cem."""
    weight_decay: float = 0.0
    """Decay of the genome per step, times the step size."""
    eval_worlds: int = 4
    """Worlds in which every member is tried, and worlds of the judging."""
    reuse: Switch = "off"
    """on: in the arms with both halves the population's episodes train the executor as well, in
    one more PPO step per round."""
    accept: Switch = "off"
    """on: write the evolved genome back only if it is at least as fit as the one before."""
    member_chunk: int = 0
    """Members rolled out at once on a device, to bound memory; 0: all (one, with the reference
    network on a CPU: it is faster)."""

    def __post_init__(self) -> None:
        if self.pop < 2 or self.pop % 2:
            cure = max(2, self.pop + self.pop % 2)
            refuse("pop", self.pop, f"be even and at least 2 (mirrored pairs); try `--pop {cure}`.")
        _above(self, 0, "sigma", "sigma_floor")
        _at_least(self, 0, "es_lr", "weight_decay", "member_chunk")
        _at_least(self, 1, "eval_worlds")
        if not 0 < self.elite_frac <= 1:
            refuse("elite_frac", self.elite_frac, "lie in (0, 1].")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A whole run. Build one with `preset(name)` and `dataclasses.replace`, or from the command
    line."""

    preset: Literal["compact", "reference"] = "compact"
    """Named set of defaults; every flag left unset takes its value."""
    compat: Switch = "off"
    """on: the reference network keeps the defects of the published system, for comparisons."""
    outer: int = 50
    """Outer rounds."""
    grad_steps: int = 5
    """PPO steps per round."""
    seed: int = 0
    """Root of every random stream of the run."""
    seeds: int = 1
    """Independent runs with seeds from `--seed` on, side by side in one program; each gets its own
    folder."""
    sweep: tuple[str, ...] = ()
    """Rates to vary in the same program, such as `es.sigma=0.02,0.05`; every combination runs."""
    members_at_once: int = 0
    """Runs of a study that advance at once on a device, to bound memory; 0: all on an accelerator,
    one after the other on a CPU, where that is faster."""
    devices: int = 0
    """Devices that share out the runs of a study, or one run's population and worlds; 0: as many
    accelerators as JAX sees and divide these evenly, or one CPU."""
    chunk: int = 5
    """Rounds per compiled call: how often the history is written and the progress moves."""
    checkpoint_every: int = 10
    """Rounds between checkpoints, at the end of a chunk; `--resume RUN_DIR` goes on from the
    newest."""
    run_dir: str | None = None
    """Where to write; must not exist. Left unset: a new folder under runs/."""
    init_from: str | None = None
    """A model.eqx, run directory or zoo:NAME whose weights to start from, on any grid and team
    size."""
    tracker: TrackerName = "none"
    """Where to show the curves live, beside history.jsonl; needs the extra of that name."""
    episodes: int = 512
    """Fresh test worlds of the final evaluation."""
    env: EnvConfig = EnvConfig()
    """The world."""
    agent: AgentConfig = AgentConfig()
    """The networks."""
    ppo: PPOConfig = PPOConfig()
    """The gradient half."""
    es: ESSettings = ESSettings()
    """The evolution half."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "outer", "chunk", "episodes", "checkpoint_every")
        _at_least(self, 1, "seeds")
        _at_least(self, 0, "grad_steps", "members_at_once", "devices")
        if not 0 <= self.seed <= 2**32 - self.seeds:
            refuse("seed", self.seed, "lie in [0, 2^32).")
        if self.agent.selector == "off" and self.es.arm != "gradient":
            refuse("selector", "off", "be on, or use `--arm gradient`: evolution needs a selector.")
        if self.agent.network == "compact" and self.env.grid > 256:
            refuse("grid", self.env.grid, "be at most 256: the compact view counts in half words.")
        if self.agent.network == "reference" and self.env.views == "relative":
            refuse("views", self.env.views, "be absolute with `--preset reference`.")
        if self.grad_steps == 0 and self.es.arm == "gradient":
            refuse("grad_steps", 0, "be at least 1 with `--arm gradient`, or nothing is trained.")
        if self.compat == "on":
            self._check_compat()

    def _check_compat(self) -> None:
        """Compatibility fixes some choices: another one is refused, not overruled."""
        if self.agent.network != "reference":
            refuse("compat", "on", "go with `--preset reference`.")
        if self.es.es_kind not in ("nes", "cem"):
            refuse("es_kind", self.es.es_kind, "be nes or cem with `--compat on`.")
        for name, value, kept in (
            ("collision", self.env.collision, "share"),
            ("anneal", self.ppo.anneal, "off"),
            ("disjoint", self.ppo.disjoint, "off"),
            ("fitness", self.es.fitness, "return"),
            ("es_optimizer", self.es.es_optimizer, "sgd"),
            ("accept", self.es.accept, "off"),
        ):
            if value != kept:
                refuse(name, value, f"be {kept} with `--compat on`, as in the published system.")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> "RunConfig":
        """The inverse of `to_dict`; a field that is unknown, missing or of another type is
        named."""
        return _rebuild(cls, data, "config")


PRESETS: dict[str, RunConfig] = {
    "compact": RunConfig(),
    "reference": RunConfig(
        preset="reference",
        env=EnvConfig(
            collision="share",
            credit="each",
            w_connectivity=2.0,
            w_collision=-4.0,
            cost="hinge",
            cost_threshold=1e-3,
        ),
        agent=AgentConfig(network="reference", width=64, depth=2, first_bias=0.0),
        ppo=PPOConfig(
            rollouts=16,
            lr=3e-4,
            anneal="off",
            ppo_epochs=4,
            minibatches=4,
            clip=0.2,
            gamma=0.99,
            gae_lambda=0.95,
            skill_entropy=0.01,
            move_entropy=0.01,
            max_grad_norm=0.5,
            price=1.0,
            price_lr=0.05,
            cost_limit=0.0,
        ),
        es=ESSettings(
            fitness="return",
            pop=16,
            sigma=0.05,
            es_lr=0.05,
            es_optimizer="sgd",
            elite_frac=0.25,
            eval_worlds=16,
        ),
    ),
}


def preset(name: str) -> RunConfig:
    """The named defaults. **Errors:** `ConfigError` lists the names."""
    if name not in PRESETS:
        refuse("preset", name, f"be one of {', '.join(PRESETS)}.")
    return PRESETS[name]


def _rebuild(cls: type, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise ConfigError(f"`{where}` must be an object with the fields of {cls.__name__}.")
    hints = typing.get_type_hints(cls)
    if unknown := set(data) - set(hints):
        raise ConfigError(
            f"`{where}` has unknown fields {sorted(unknown)}; it was written by a later version or "
            "edited."
        )
    # A field that is missing is younger than the file; the defaults of such fields change nothing.
    given = {name: hint for name, hint in hints.items() if name in data}
    values = {name: _value(hint, data[name], f"{where}.{name}") for name, hint in given.items()}
    return cls(**values)


def _value(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _rebuild(typing.cast(type, hint), value, where)
    options = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:  # JSON has lists only
        items = value if isinstance(value, list | tuple) else [None]
        return tuple(_value(str, item, where) for item in items)
    if typing.get_origin(hint) is Literal:
        if value in options:
            return value
        raise ConfigError(f"`{where}` is {value!r}; it must be one of {list(options)}.")
    if float in (hint, *options) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    allowed = options or (hint,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        names = " or ".join(t.__name__ for t in allowed)
        raise ConfigError(f"`{where}` is {value!r}; it must be of type {names}.")
    return value
