-- == Gangs whose places a planner proposes ==

drop function if exists hwqueue.gang_places(bigint[], text[], text[], text, boolean, timestamptz, int);
drop function if exists hwqueue.assemble_gang(hwqueue.gang, boolean, timestamptz, int);
