drop function if exists hwqueue.find_profile(jsonb, bigint, timestamptz, int);
