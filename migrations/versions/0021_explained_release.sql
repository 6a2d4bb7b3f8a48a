-- it says who released the lease of a step now
drop function if exists hwqueue.explain_lease(uuid, int);
