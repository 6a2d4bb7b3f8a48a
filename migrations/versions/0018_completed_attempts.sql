-- == Completed attempts ==
-- A retry of a run may run completed steps again: their attempts stay on record.

alter table hwqueue.attempt
  drop constraint attempt_outcome_check,
  add constraint attempt_outcome_check
    check (outcome in ('completed', 'failed', 'expired', 'superseded', 'released', 'cancelled'));
