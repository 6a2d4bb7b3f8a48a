-- settle_and_claim takes what is done as two lists. The functions come from sql/.
drop function if exists hwqueue.settle_and_claim(uuid, bigint, jsonb, text[], int, text[], interval, int);
drop function if exists hwqueue.check_completions(uuid[], bigint[]);
drop function if exists hwqueue.check_settlements(jsonb, int);
drop function if exists hwqueue.settle_rest(uuid, jsonb, int[], int);
drop function if exists hwqueue.is_plain_batch(jsonb);
drop function if exists hwqueue.is_plain_completion(jsonb);

-- The front of a queue is told with the classes that stand there.
drop function if exists hwqueue.next_lane(bigint[], double precision[], int[], smallint, bigint, double precision, smallint, bigint, bigint, int, int, timestamptz, int);
drop function if exists hwqueue.front_lane(bigint[], double precision[], int[], smallint, bigint, bigint, int, timestamptz, int);
drop function if exists hwqueue.take_lane(bigint[], bigint[], int[], smallint, bigint, bigint, int, timestamptz, int);
