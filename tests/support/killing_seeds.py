"""The seeds that kill each mutant, so that its test costs a run or two.

A change of what is simulated, or of what is tested, may give every seed another run: then the test
looks for another one, and says which to write here.
"""

OF_STORES: dict[str, int] = {
    "what_is_freed_may_go_at_once": 20,
    "tombstones_go_before_they_are_due": 20,
    "the_search_looks_at_what_is_published": 1,
    "queues_are_not_searched": 0,
    "an_offload_moves_what_grows": 0,
    "an_offload_forgets_what_manifests_named": 50,
    "a_part_goes_one_reference_early": 0,
    "a_commit_counts_every_part_once": 0,
    "repacking_lets_go_of_nothing": 0,
    "what_manifests_let_go_of_is_not_counted": 29,
    "expiry_says_nothing_of_manifests": 29,
    "a_merge_joins_in_the_wrong_order": 0,
    "a_merge_forgets_where_its_slice_begins": 0,
    "a_merge_publishes_before_it_writes": 1,
    "the_search_buries_parts_in_use": 0,
    "nobody_looks_for_what_others_left": 2,
    "an_unclear_part_counts_as_made": 44,
    "a_commit_is_published_before_it_is_durable": 0,
    "a_taken_number_counts_as_ours": 2,
    "transactions_are_planned_on_what_is_published": 1,
    "a_merge_checks_only_its_first_extent": 0,
    "a_merge_mixes_up_its_queues": 0,
    "a_name_is_used_twice": 0,
    "units_are_not_counted_in_a_changed_record": 0,
    "upkeep_believes_what_is_not_published": 0,
    "an_index_file_says_that_it_has_more": 0,
    "a_merge_of_index_files_loses_one": 5,
    "changes_are_not_compared_with_their_plan": 1987,
}
OF_FILES: dict[str, int] = {
    "a_segment_of_another_owner_goes_on": 2,
    "an_owner_never_learns_that_it_was_fenced": 1,
    "a_file_is_taken_over_beside_its_owner": 2,
    "an_orphan_counts_as_an_offloaded_file": 368,
}
OF_JOURNALS: dict[str, int] = {
    "an_entry_below_the_boundary_counts": 1,
    "an_unclear_entry_counts_as_landed": 0,
    "the_boundary_passes_the_newest_snapshot": 4,
    "entries_go_before_the_boundary_stands": 0,
    "a_transaction_is_acknowledged_before_it_is_durable": 0,
    "nobody_looks_at_the_boundary": 1,
    "a_snapshot_is_not_read_back": 59,
    "what_can_be_seen_counts_as_durable": 67,
    "a_lost_reply_makes_an_entry_anothers": 0,
    "an_owner_never_learns_that_it_was_fenced": 5,
    "a_new_owner_has_the_old_epoch": 0,
    "a_slow_listing_is_believed": 893,
    "old_boundaries_go_at_once": 493,
}
OF_OWNERS: dict[str, int] = {
    "the_lease_is_ignored": 4,
    "no_sign_of_life_is_written": 0,
    "a_dead_process_of_this_host_is_not_recognised": 2,
    "a_clean_end_is_ignored": 3,
    "a_new_owner_writes_no_fence": 2,
    "the_pid_namespace_is_ignored": 1,
}
