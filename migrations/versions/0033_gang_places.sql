-- == The search for a place of a gang ==

-- They have other arguments, other results, or are gone.
drop function if exists hwqueue.copies_that_fit(hwqueue.placement_class, hwqueue.node,
  hwqueue.node_load, int);
drop function if exists hwqueue.class_nodes(hwqueue.placement_class, timestamptz, int);
drop function if exists hwqueue.class_rooms(hwqueue.placement_class, int, timestamptz, int);
drop function if exists hwqueue.emptied_rooms(hwqueue.placement_class, int, timestamptz, int);
drop function if exists hwqueue.gang_rooms(hwqueue.placement_class[], int[], timestamptz, int);
drop function if exists hwqueue.emptied_gang_rooms(hwqueue.placement_class[], int[], timestamptz, int);
drop function if exists hwqueue.placed_rooms(hwqueue.gang_room[], text[], text[]);
drop function if exists hwqueue.places_with_room(hwqueue.gang_room[], int, boolean, text[], text[]);
drop function if exists hwqueue.place_sums(hwqueue.gang, hwqueue.gang_room[], int);
drop function if exists hwqueue.gang_ways(hwqueue.gang, hwqueue.gang_room[], int, int, jsonb);
drop function if exists hwqueue.has_room_for_earmarks(hwqueue.node);

-- Labels and racks are read where places are formed, once a node.
alter type hwqueue.gang_room drop attribute rack, drop attribute labels;
