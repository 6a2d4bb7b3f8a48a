-- For operators. The functions and views come from sql/.

-- views: a node shows its cores and the isolation classes that it honours.
drop function if exists hwqueue.list_nodes(text, int);
