drop function if exists hwqueue.find_profile(jsonb, bigint, timestamptz, int);

-- grammar: preferences are told from requirements; a placement has all its parts
drop function if exists hwqueue.normalise_expr(jsonb, text, int);
drop function if exists hwqueue.normalise_exprs(jsonb, text, int, int);
drop function if exists hwqueue.build_placement(jsonb, jsonb, jsonb);
