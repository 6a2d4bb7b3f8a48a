-- settle_and_claim takes what is done as two lists. The functions come from sql/.
drop function if exists hwqueue.settle_and_claim(uuid, bigint, jsonb, text[], int, text[], interval, int);
drop function if exists hwqueue.check_completions(uuid[], bigint[]);
drop function if exists hwqueue.check_settlements(jsonb, int);
drop function if exists hwqueue.settle_rest(uuid, jsonb, int[], int);
drop function if exists hwqueue.is_plain_batch(jsonb);
drop function if exists hwqueue.is_plain_completion(jsonb);
