"""The reference system's networks: convolutions over grid planes, message passing, skill heads.

`--preset reference` trains them as the published system does, with its known defects mended
wherever that leaves the architecture and the published numbers alone. `--compat on` keeps those
that recorded data or a comparison needs. What became of each, first in `reference`, then under
`--compat on`, and the tests that show it (`file::test`):

D1 Diagonal goals stand still, since no single move reduces the Chebyshev distance.
    Fixed: the L1 distance decides between equals. Kept.
    test_reference::test_diagonal_goals_move_only_with_the_tie_break,
    test_golden_reference::test_controller_file
D2 The gradient trains the selector that evolution owns, with moments gone stale.
    Fixed: moments start afresh after a write-back; `--disjoint on` freezes the selector. Kept.
    test_learn::test_selector_moments_start_afresh_after_the_write_back,
    test_learn::test_selector_moves_only_where_the_gradient_owns_it,
    test_reference::test_compat_keeps_the_moments_of_a_replaced_selector
D3 cem forgets the sigma that it fitted.
    Fixed: carried, with a floor. Kept.
    test_evolve::test_one_elite_keeps_sigma_and_the_floor_holds,
    test_evolve::test_a_compat_strategy_ranks_as_the_published_step
D4 A nes step is as long as the fresh selector, whatever the signal.
    Kept in both, as a published number; `--es-optimizer adam` and a smaller `--es-lr` mend it.
    test_evolve::test_adam_step_by_hand
D5 Equal fitness is ranked by row, so that constant fitness moves the mean.
    Fixed: ties share their rank. Kept.
    test_evolve::test_constant_fitness_has_exactly_zero_ranks,
    test_evolve::test_a_compat_strategy_ranks_as_the_published_step,
    test_golden_es::test_every_recorded_array
D6 A fitness that is not a number ranks best.
    Fixed: worst. Kept, except that the history's best is over finite members.
    test_evolve::test_failures_rank_worst_and_equal,
    test_rounds::test_a_member_without_fitness_never_wins,
    test_golden_es::test_every_recorded_array
D7 Odd and tiny populations change their size silently.
    Fixed in both: refused.
    test_evolve::test_odd_and_tiny_populations_are_refused
D8 The evolved mean is written back unseen, however bad.
    Both judge and log the mean before and after; `--accept on` makes it a condition. Kept
    (`--accept on` is refused).
    test_rounds::test_acceptance_never_lowers_the_judged_fitness,
    test_reference::test_what_does_not_fit_the_preset_is_refused
D9 The return, most of it a constant for staying connected, is the fitness.
    Kept in both, as a published choice; `--fitness graded` mends it in `reference`.
    test_rounds::test_return_is_what_the_gradient_maximises_with_the_price_charged
D10 No logged connectivity says whether the team is in one piece.
    Fixed in both: conn_hard stands beside the two thresholds on λ₂.
    test_coverage::test_hard_connectivity_by_search, test_coverage::test_score_of_an_episode_by_hand
D11 The fixed penalty on λ₂ is too small to matter.
    Kept in both, as published numbers; `--cost bar` and a larger `--price` mend it.
    test_coverage::test_cost_is_charged_exactly_where_lambda2_is_under_the_bar
D12 The multiplier can only rise, and a mean of λ₂ hides single broken episodes.
    Fixed in both: the shortfall is taken per step, and the error is signed. At the published
    limit of 0 there is nothing to be below, so it takes a `--cost-limit` above 0 to see it fall.
    test_learn::test_price_falls_when_the_constraint_holds,
    test_learn::test_update_moves_the_price_by_the_signed_error,
    test_golden_learn::test_every_recorded_array
D13 Moves of scripted skills, which have no weights, dilute the move loss.
    Fixed: they do not count. Kept.
    test_learn::test_ppo_loss_by_hand, test_golden_reference::test_ppo_loss_file
D14 All agents share the team's mean reward and one advantage.
    Kept in both: the central critic has one value for the team.
    test_reference::test_the_team_reward_gives_all_agents_one_advantage
D15 Agents still collide: two may enter one empty cell.
    Kept in both, with the published penalty; `--collision claim` mends it in `reference`.
    test_coverage::test_sequential_claim_in_every_crowd,
    test_coverage::test_collisions_are_blocked_or_sharing_agents
D16 The critic's gradient, of raw returns, dominates a norm taken over both networks.
    Fixed: clipped apart, returns normalised. Kept.
    test_learn::test_actor_and_critic_are_clipped_apart,
    test_reference::test_without_value_normalisation_targets_are_raw_returns,
    test_golden_reference::test_ppo_loss_file
D17 The horizon is bootstrapped, and no view holds the time.
    Kept in both: the inputs are part of the architecture.
    test_learn::test_advantages_by_hand, test_golden_learn::test_every_recorded_array
D18 The penalty on the degree's variance has no gradient.
    Not applicable: left out; the recorded total is compared with it added.
    test_golden_reference::test_ppo_loss_file
D19 Dropout crashes.
    Not applicable: left out.
D20 Grouped actors lack skills, and recurrent minibatches may be empty.
    Not applicable: left out. Minibatches that do not divide the rows are refused.
    test_cli::test_bad_flags_are_refused
D21 Weight decay is below float32's resolution.
    Kept in both, as a published number.
    test_golden_reference::test_ppo_loss_file
D22 Keys are used twice.
    Fixed in both: no two draws of a run's rounds share one.
    test_rounds::test_no_two_draws_share_a_key
D23 A warm start checks shapes too late, and not what else the weights were trained for.
    Fixed in both: the first differing field is named before any weight is read.
    test_reference::test_another_reference_architecture_is_named,
    test_runtime::test_other_architecture_names_the_leaf
D24 Settings are ignored silently.
    Mended in both: obstacles that the terrain lacks, options of the other network and choices
    that `--compat on` would overrule are refused.
    test_reference::test_what_does_not_fit_the_preset_is_refused,
    test_cli::test_bad_flags_are_refused
D25 Maps may be disconnected, and agents start inside walls.
    Fixed in both.
    test_coverage::test_every_free_cell_can_be_reached_and_spawns_are_free
D26 Logged metrics are those of an earlier policy; the returned one is never evaluated.
    Fixed in both: the policy written back is judged every round, the last one on fresh worlds.
    test_reference::test_the_preset_trains_saves_loads_and_evaluates,
    test_train::test_history_has_one_record_a_round
D27 A run cannot be resumed.
    Fixed in both: `--resume`.
    test_resume::test_a_crashed_run_resumes_bit_for_bit
D28 A second loop with callbacks stands beside the one that trains.
    Kept in both, as a public function that equals its compiled form.
    test_coexist::test_compiled_form_equals_host_form
D29 Every train step is traced and compiled anew.
    Fixed in both.
    test_rounds::test_one_trace_one_call_and_donated_state
D30 Members are evaluated one by one from the host, with whole trajectories kept.
    Fixed in both.
    test_rounds::test_fused_fitness_is_that_of_each_member_on_its_own,
    test_rounds::test_no_host_callback_in_the_program
D31 Modules without use are built, stored and carried through the optimizer.
    Fixed in both, but for the attention of `multihead`, which every aggregator holds, so that one
    file fits all.
    test_reference::test_parameter_counts_are_the_published_ones
"""
