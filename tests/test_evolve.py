"""Evolution: one body over all strategies, then the promises about ties, failures and streams."""

import warnings
from collections.abc import Callable

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from purejax_merl.evolve import (
    CEM,
    NES,
    ESConfig,
    antithetic_noise,
    centered_ranks,
    elite_weights,
    es_step,
    flatten,
    make_evosax,
    make_strategy,
    module_theta,
    ranking,
    set_module_theta,
    valid_names,
)

P, D = 16, 6

# The weight-table strategies move by a weighted mean: lr 1 under plain descent is the full move.
UNIT_RATE = ("SimpleES", "SNES", "xNES", "DES")


def evosax_strategy(name, population_size=P):
    unit = name in UNIT_RATE
    rate, optimizer = (1.0, "sgd") if unit else (0.1, "adam")
    return make_evosax(name, population_size, 0.3, rate, optimizer=optimizer)


OURS = {
    "nes-sgd": lambda: NES(population_size=P, sigma=0.3, lr=0.3),
    "nes-adam": lambda: NES(population_size=P, sigma=0.3, lr=0.1, optimizer="adam"),
    "cem": lambda: CEM(population_size=P, sigma=0.3),
}
THEIRS = ("Open_ES", "SNES", "CMA_ES", "SimpleES")
MORE_OF_THEIRS = ("PGPE", "xNES", "Sep_CMA_ES")


def build(name):
    return OURS[name]() if name in OURS else evosax_strategy(name)


@eqx.filter_jit
def ask(strategy, state, key):
    return strategy.ask(state, key=key)


@eqx.filter_jit
def tell(strategy, state, population, fitness):
    return strategy.tell(state, population, fitness)


def sphere(x):
    return -np.sum((np.asarray(x) - 0.5) ** 2, axis=-1)


def search(strategy, fitness_fn, rounds, theta=None):
    """Rounds of ask and tell around a fitness of the whole population, in NumPy."""
    state = strategy.init(jnp.ones(D) if theta is None else theta)
    for index in range(rounds):
        population, state = ask(strategy, state, jax.random.key(index))
        state = tell(strategy, state, population, jnp.asarray(fitness_fn(population)))
    return state


def assert_same_bits(a, b):
    chex.assert_trees_all_equal_shapes_and_dtypes(a, b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


# One body over all strategies


@pytest.mark.parametrize(
    "name",
    [*OURS, *THEIRS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_OF_THEIRS)],
)
def test_sphere_promises(name):
    strategy = build(name)
    start = strategy.init(jnp.ones(D))
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(start))
    spread = np.std(ask(strategy, start, jax.random.key(0))[0])
    assert 0.2 < spread < 0.4, "the first population does not have sigma as its spread"

    state = search(strategy, sphere, 40)
    assert sphere(strategy.mean(state)) > 0.2 * sphere(np.ones(D)), "no progress on a sphere"
    assert strategy.mean(state).shape == (D,) and strategy.sigma(state).shape == ()

    # A warm state and fitness that tells nothing: nothing moves.
    population, asked = ask(strategy, state, jax.random.key(77))
    assert population.shape == (P, D) and population.dtype == strategy.mean(state).dtype
    for constant in (0.0, 0.1, -3e7, np.nan, -np.inf):
        fitness = jnp.asarray(np.full(P, constant, np.float32))
        assert_same_bits(tell(strategy, asked, population, fitness), asked)

    # Failures of either sign count like the worst member; one good member is enough to steer.
    worse = np.array(sphere(population))
    worse[[2, 5]] = np.nan, np.inf
    lone = np.full(P, np.nan, np.float32)
    lone[3] = 1.0
    for fitness in (worse, lone):
        mean = np.asarray(strategy.mean(tell(strategy, asked, population, jnp.asarray(fitness))))
        assert np.all(np.isfinite(mean)) and np.any(mean != strategy.mean(asked))

    # Injection replaces the mean and keeps the rest.
    theta = jnp.asarray(np.linspace(-1.0, 1.0, D, dtype=np.float32))
    injected = strategy.inject(asked, theta)
    assert_same_bits(strategy.mean(injected), theta)
    assert_same_bits(strategy.sigma(injected), strategy.sigma(asked))
    assert_same_bits(strategy.inject(injected, strategy.mean(asked)), asked)
    with pytest.raises(ValueError, match="Call `init`"):
        strategy.inject(asked, jnp.ones(D + 1))


@pytest.mark.parametrize("name", [*OURS, "Open_ES", "CMA_ES"])
def test_sign(name):
    strategy = build(name)
    start = jnp.full(D, 0.7)

    def distance(direction):
        state = search(strategy, lambda x: direction * np.sum(np.asarray(x) ** 2, -1), 5, start)
        return np.linalg.norm(strategy.mean(state))

    assert distance(-1.0) < np.linalg.norm(start) < distance(1.0)


@pytest.mark.parametrize("name", ["nes-adam", "cem", "Open_ES"])
def test_many_rounds_one_trace(name):
    strategy = build(name)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def play(state, key):
        state = strategy.inject(state, strategy.mean(state))
        population, state = strategy.ask(state, key=key)
        return strategy.tell(state, population, -jnp.sum(population**2, axis=-1))

    chex.clear_trace_counter()
    state = strategy.init(jnp.ones(D))
    for index in range(5):
        state = play(state, jax.random.fold_in(jax.random.key(0), index))


@pytest.mark.slow
def test_every_evosax_name_runs():
    dim = 20
    for name in valid_names():
        strategy = evosax_strategy(name)
        state = search(strategy, sphere, 20, jnp.ones(dim))
        population, asked = ask(strategy, state, jax.random.key(77))
        assert population.shape == (P, dim), name
        assert np.all(np.isfinite(strategy.mean(state))), name
        if name != "iAMaLGaM_Univariate":  # random-walks unless P is well above D
            assert sphere(strategy.mean(state)) > sphere(np.ones(dim)), name
        assert_same_bits(tell(strategy, asked, population, jnp.ones(P)), asked)
        injected = strategy.inject(asked, jnp.full(dim, 40.0))  # far from every incumbent
        told = tell(strategy, injected, population + 39.0, -jnp.arange(P, dtype=float))
        assert np.mean(strategy.mean(told)) > 20.0, f"{name} returned to an old incumbent"


# Ranks and elites


def test_ties_share_their_rank():
    ranks = centered_ranks(jnp.array([3.0, 1.0, 3.0, 2.0, 9.0]))
    np.testing.assert_allclose(ranks, [0.125, -0.5, 0.125, -0.25, 0.5])


@pytest.mark.parametrize("size", [2, 7, 50])
def test_constant_fitness_has_exactly_zero_ranks(size):
    assert_same_bits(centered_ranks(jnp.full(size, 1 / 3)), jnp.zeros(size))


def test_failures_rank_worst_and_equal():
    ranks = centered_ranks(jnp.array([jnp.inf, -5.0, jnp.nan, -1e30, -jnp.inf]))
    np.testing.assert_allclose(ranks, [-0.25, 0.5, -0.25, 0.25, -0.25])


def test_counting_by_sort_equals_counting_by_pairs(monkeypatch):
    values = jnp.round(jax.random.normal(jax.random.key(0), (60,)), 1).at[4].set(-jnp.inf)
    by_pairs = ranking.rank_counts(values)
    monkeypatch.setattr(ranking, "_MAX_PAIRWISE", 0)
    assert_same_bits(ranking.rank_counts(values), by_pairs)


@pytest.mark.parametrize(
    ("fitness", "expected"),
    [
        ([1, 2, 3, 4], [0, 0, 0.5, 0.5]),
        ([1, 3, 3, 4], [0, 0.25, 0.25, 0.5]),
        ([2, 2, 2, 2], [0.25, 0.25, 0.25, 0.25]),
        ([1, jnp.nan, 3, jnp.inf], [0.5, 0, 0.5, 0]),
        ([jnp.nan, -7, jnp.nan, -jnp.inf], [0, 1, 0, 0]),
        ([jnp.nan] * 4, [0.25] * 4),
    ],
)
def test_elite_weights(fitness, expected):
    np.testing.assert_allclose(elite_weights(jnp.array(fitness, float), 2), expected)


def test_weight_tables_average_over_ties_and_skip_failures():
    table = jnp.array([0.6, 0.4, 0.0, -0.4])

    def read(cost):
        below, above = ranking.rank_counts(cost)
        return ranking.table_weights(below, above, jnp.isinf(cost), table)

    np.testing.assert_allclose(read(jnp.array([4.0, 1.0, 2.0, 3.0])), [-0.4, 0.6, 0.4, 0.0])
    np.testing.assert_allclose(read(jnp.array([1.0, 1.0, 2.0, 2.0])), [0.5, 0.5, -0.2, -0.2])
    np.testing.assert_allclose(jnp.sum(read(jnp.zeros(4))), 0.6, rtol=1e-6)
    failed = read(jnp.array([jnp.inf, 2.0, 1.0, jnp.inf]))
    np.testing.assert_allclose(failed, [-0.2, 0.4, 0.6, -0.2], rtol=1e-6)
    table = jnp.array([0.5, 0.3, 0.2, 0.0])
    lone = read(jnp.array([jnp.inf, 1.0, jnp.inf, jnp.inf]))
    np.testing.assert_allclose(lone, [0.0, 1.0, 0.0, 0.0], rtol=1e-6)


# Our strategies


def test_growing_population_keeps_the_earlier_pairs():
    for key in (jax.random.key(3), jax.random.PRNGKey(3)):
        small, large = antithetic_noise(key, 8, D), antithetic_noise(key, 24, D)
        np.testing.assert_array_equal(small[:4], large[:4])
        np.testing.assert_array_equal(small[:4], -small[4:])
        np.testing.assert_array_equal(small[4:], large[12:16])
        assert len(np.unique(large[:, 0])) == 24


@pytest.mark.parametrize("size", [0, 1, 3, 7, -2, 2.5, True])
def test_odd_and_tiny_populations_are_refused(size):
    for call in (
        lambda: NES(population_size=size),
        lambda: CEM(population_size=size),
        lambda: ESConfig(pop_size=size),
        lambda: make_evosax("Open_ES", size, 0.1, 0.1),
    ):
        # With the type hook on, a number that is no integer is refused one step earlier.
        with pytest.raises(Exception, match=r"pop(ulation)?_size"):
            call()
    with pytest.raises(Exception, match="kind"):
        ESConfig(kind="cma")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"pop_size=5.*Try `pop_size=6`"):
        ESConfig(pop_size=5)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: NES(population_size=4, sigma=0.0), "sigma=0.*greater than 0"),
        (lambda: NES(population_size=4, sigma=jnp.nan), "sigma=nan.*finite"),
        (lambda: NES(population_size=4, sigma=jnp.array([0.1, 0.2])), "filter_vmap"),
        (lambda: NES(population_size=4, lr=-1.0), "lr=-1.*at least 0"),
        (lambda: NES(population_size=4, weight_decay=-1.0), "weight_decay"),
        (lambda: CEM(population_size=4, elite_frac=0.0), "elite_frac"),
        (lambda: ESConfig(elite_frac=1.5), "elite_frac"),
        (lambda: ESConfig(sigma=-0.1), "sigma"),
        (lambda: make_evosax("OpenES", 8, 0.1, 0.1), "must be one of ARS, .*Open_ES"),
        (lambda: make_evosax("LM_MA_ES", 8, 0.1, 0.1).init(jnp.ones(3)), "D=3"),
    ],
)
def test_bad_numbers_are_refused_by_name(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_one_elite_keeps_sigma_and_the_floor_holds():
    lone = CEM(population_size=4, elite_frac=0.25, sigma=0.3)
    state = search(lone, sphere, 10)
    assert jnp.all(jnp.isfinite(state.mean)) and state.step == jnp.float32(0.3)
    floored = CEM(population_size=P, sigma=0.3, sigma_floor=0.1)
    assert search(floored, sphere, 60).step == jnp.float32(0.1)
    free = CEM(population_size=P, sigma=0.3, sigma_floor=0.0)
    assert search(free, sphere, 60).step < 0.1


def test_sweep_over_rates_in_one_vmap():
    sigmas = jnp.array([0.05, 0.2, 0.4])
    keys = jax.random.split(jax.random.key(0), 5)

    def run(sigma):
        strategy = NES(population_size=P, sigma=sigma, lr=0.1, optimizer="adam")

        def play(state, key):
            population, state = strategy.ask(state, key=key)
            return strategy.tell(state, population, -jnp.sum(population**2, axis=-1)), None

        return strategy.mean(jax.lax.scan(play, strategy.init(jnp.ones(D)), keys)[0])

    swept = jax.jit(jax.vmap(run))(sigmas)
    np.testing.assert_allclose(swept[1], run(sigmas[1]), rtol=1e-4, atol=1e-5)
    assert len(np.unique(swept[:, 0])) == 3
    cem = eqx.filter_vmap(lambda sigma: CEM(population_size=P, sigma=sigma))(sigmas)
    steps = eqx.filter_vmap(lambda strategy: strategy.init(jnp.ones(D)).step)(cem)
    np.testing.assert_array_equal(steps, sigmas)


def test_adam_step_by_hand():
    strategy = NES(population_size=4, sigma=0.5, lr=0.1, weight_decay=0.2, optimizer="adam")
    state = strategy.init(jnp.array([1.0, -2.0]))
    adam = optax.adam(0.1, b1=0.9, b2=0.999, eps=1e-8)
    opt_state, mean = adam.init(state.mean), state.mean
    for index in range(3):
        population, state = ask(strategy, state, jax.random.key(index))
        fitness = jnp.asarray(sphere(population))
        noise = (population - mean) / 0.5
        gradient = centered_ranks(fitness) @ noise / (4 * 0.5)
        step, opt_state = adam.update(-gradient, opt_state)
        mean = mean + step - 0.1 * 0.2 * mean  # type: ignore[operator]
        state = tell(strategy, state, population, fitness)
        np.testing.assert_allclose(state.mean, mean, rtol=1e-5)
        assert state.mean.dtype == jnp.float32


# Against evosax's own numbers


def one_generation(dtype):
    theta = jax.random.normal(jax.random.key(1), (50,), dtype)
    strategy = NES(population_size=32, sigma=jnp.asarray(0.1, dtype), lr=jnp.asarray(0.2, dtype))
    population, state = ask(strategy, strategy.init(theta), jax.random.key(2))
    fitness = jax.random.normal(jax.random.key(3), (32,), dtype).at[4].set(0.5).at[9].set(0.5)
    return strategy, state, population, fitness


@pytest.mark.parametrize(("x64", "tolerance"), [(False, 1e-5), (True, 1e-12)])
def test_nes_equals_open_es(x64, tolerance):
    algorithms = pytest.importorskip("evosax.algorithms")
    with jax.enable_x64(x64):
        dtype = jnp.float64 if x64 else jnp.float32
        strategy, state, population, fitness = one_generation(dtype)
        ours = strategy.mean(tell(strategy, state, population, fitness)) - state.mean

        bare = algorithms.Open_ES(
            32,
            state.mean,
            optimizer=optax.sgd(0.2),
            std_schedule=optax.constant_schedule(0.1),
        )
        config = bare.default_params
        start = bare.init(jax.random.key(0), state.mean, config)
        moved, _ = bare.tell(jax.random.key(0), population, -fitness, start, config)
        theirs = moved.mean - state.mean

        adapted = make_evosax("Open_ES", 32, 0.1, 0.2, optimizer="sgd")
        through = tell(adapted, adapted.init(state.mean), population, fitness)
        scale = tolerance * np.max(np.abs(theirs))
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=scale)
        np.testing.assert_allclose(
            adapted.mean(through) - state.mean, theirs, rtol=tolerance, atol=scale
        )
        assert ours.dtype == dtype


def test_cem_mean_equals_simple_es():
    algorithms = pytest.importorskip("evosax.algorithms")
    _, state, population, _ = one_generation(jnp.float32)
    fitness = jax.random.normal(jax.random.key(3), (32,))
    cem = CEM(population_size=32, elite_frac=0.25, sigma=0.1)
    ours = tell(cem, cem.init(state.mean), population, fitness)

    bare = algorithms.SimpleES(32, state.mean)
    bare.elite_ratio = 0.25
    config = bare.default_params.replace(c_std=1.0, std_init=0.1)
    start = bare.init(jax.random.key(0), state.mean, config)
    moved, _ = bare.tell(jax.random.key(0), population, -fitness, start, config)
    np.testing.assert_allclose(cem.mean(ours), moved.mean, rtol=1e-5, atol=1e-6)
    elites = population[jnp.argsort(fitness)[-8:]]
    np.testing.assert_allclose(cem.sigma(ours), jnp.mean(jnp.std(elites, axis=0)), rtol=1e-5)


# Genomes


class Model(eqx.Module):
    weight: jax.Array
    bias: jax.Array
    counts: jax.Array
    label: str
    activation: Callable = jax.nn.relu


def test_genome_round_trips():
    tree = {"a": jnp.arange(3), "b": [jnp.array([[1.5, -2.0]]), True], "c": 0.25}
    theta, unflatten = flatten(tree)
    np.testing.assert_array_equal(theta, [0, 1, 2, 1.5, -2, 1, 0.25])
    assert_same_bits(unflatten(theta), jax.tree.map(jnp.asarray, tree))

    module = Model(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([5.0]), jnp.arange(4), "name")
    theta = module_theta(module)
    np.testing.assert_array_equal(theta, [1, 2, 3, 4, 5])
    assert eqx.tree_equal(set_module_theta(module, theta), module)
    changed = set_module_theta(module, 2 * theta)
    np.testing.assert_array_equal(module_theta(changed), 2 * theta)
    assert changed.counts is module.counts and changed.activation is jax.nn.relu


def test_genome_refuses_what_does_not_fit():
    module = Model(jnp.ones((2, 4)), jnp.ones(1), jnp.arange(4), "name")
    with pytest.raises(ValueError, match=r"\(5,\).*D=9"):
        set_module_theta(module, jnp.zeros(5))
    with pytest.raises(TypeError, match="module_theta"):
        flatten(module)


# The step around a host function


def test_es_step_calls_once_per_member_in_order():
    seen = []

    def impure(theta):
        seen.append(np.asarray(theta))
        return -float(np.sum(np.asarray(theta) ** 2))

    theta, key = jnp.full(D, 0.4), jax.random.PRNGKey(0)
    config = ESConfig(pop_size=8, sigma=0.1, lr=0.1)
    moved, info = es_step(theta, impure, config, key)
    np.testing.assert_allclose(seen, theta + 0.1 * antithetic_noise(key, 8, D), rtol=1e-6)
    scores = [-np.sum(row**2) for row in seen]
    assert set(info) == {"best_fitness", "mean_fitness"}
    np.testing.assert_allclose(info["best_fitness"], max(scores), rtol=1e-5)
    np.testing.assert_allclose(info["mean_fitness"], np.mean(scores), rtol=1e-5)

    strategy = make_strategy(config)
    population, state = strategy.ask(strategy.init(theta), key=key)
    state = strategy.tell(state, population, jnp.asarray(scores, jnp.float32))
    np.testing.assert_allclose(moved, strategy.mean(state), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["nes", "cem"])
def test_es_step_stays_put_on_constant_fitness(kind):
    theta = jnp.linspace(-1, 1, D)
    config = ESConfig(kind=kind, weight_decay=0.1)
    moved, info = es_step(theta, lambda _: 0.1, config, jax.random.key(0))
    assert_same_bits(moved, theta)
    assert ("sigma" in info) == (kind == "cem")
    followed, _ = es_step(theta, lambda _: 0.1, config, jax.random.key(0), compat=True)
    assert jnp.any(followed != theta), "the published ranks move on ties"


@pytest.mark.parametrize("kind", ["nes", "cem"])
@pytest.mark.parametrize("fitness", [[1.0] * 8, [3.0, 1, 1, 2, 1, np.nan, 2, 0]], ids=str)
def test_a_compat_strategy_ranks_as_the_published_step(kind, fitness):
    """Ties by row, NaN best, and a sigma that stays where it started."""
    theta, key = jnp.linspace(-1.0, 1.0, D), jax.random.key(0)
    config, scores = ESConfig(pop_size=8, sigma=0.1, kind=kind), iter(fitness)
    moved, _ = es_step(theta, lambda _: next(scores), config, key, compat=True)
    strategy = {"nes": NES, "cem": CEM}[kind](population_size=8, sigma=0.1, compat=True)
    population, state = ask(strategy, strategy.init(theta), key)
    state = tell(strategy, state, population, jnp.asarray(fitness, jnp.float32))
    np.testing.assert_allclose(strategy.mean(state), moved, rtol=1e-5, atol=1e-6)
    assert jnp.any(moved != theta)
    assert strategy.sigma(state) == jnp.float32(0.1)


def test_es_step_reports_failures_once():
    scores = iter([jnp.nan, 1.0, 3.0, jnp.inf])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, info = es_step(
            jnp.zeros(D), lambda _: next(scores), ESConfig(pop_size=4), jax.random.key(0)
        )
    assert [str(w.message)[:6] for w in caught] == ["2 of 4"]
    assert info == {"best_fitness": 3.0, "mean_fitness": 2.0}
