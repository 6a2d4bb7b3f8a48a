-- What this transaction has done to the rows of each table so far, as it will count once it commits.
select relname, n_tup_ins as inserted, n_tup_hot_upd as updated_hot, n_tup_upd - n_tup_hot_upd as updated, n_tup_del as deleted
from pg_stat_xact_user_tables
where schemaname in ('hwqueue', 'public')
