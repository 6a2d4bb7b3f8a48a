-- Tables that were written to: how large they and their indexes are, and the dead rows that vacuum has not removed yet.
select c.oid::regclass::text, pg_table_size(c.oid), pg_indexes_size(c.oid), s.n_dead_tup
from pg_stat_user_tables s
join pg_class c on c.oid = s.relid
where s.n_tup_ins > 0
order by 1
