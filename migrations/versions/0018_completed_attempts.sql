-- == Completed attempts ==
-- A retry of a run may run completed steps again: their attempts stay on record.

-- not valid: the rows that are there have met the narrower check, so they are not read
alter table hwqueue.attempt
  drop constraint attempt_outcome_check,
  add constraint attempt_outcome_check
    check (outcome in ('completed', 'failed', 'expired', 'superseded', 'released', 'cancelled')) not valid;
