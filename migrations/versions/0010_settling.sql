-- Keys for replica identity, and how claims end.
select 1;
