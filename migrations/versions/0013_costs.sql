-- What it costs to judge a placement; tenants.
select 1;
