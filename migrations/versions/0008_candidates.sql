-- Which classes a claim may take.
select 1;
