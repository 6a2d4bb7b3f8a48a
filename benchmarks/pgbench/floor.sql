update floor set state = 1
where id = (select id from floor where state = 0 order by id limit 1 for update skip locked)
returning id, payload \gset
update floor set state = 2 where id = :id;
