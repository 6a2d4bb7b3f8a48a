-- Policies of services, as far as terms go by them: what its leases keep away from, and what "the same place" means.

-- The services that a service keeps away from.
create or replace function hwqueue.service_away_from(p_service uuid, p_shard int) returns uuid[]
language plpgsql stable
as $$
begin
  return coalesce((select s.away_from from hwqueue.service s where s.shard_id = p_shard and s.service_id = p_service), '{}');
end
$$;

-- Whether a class goes by a policy of its service that has changed: until it is bound anew, none of its leases is claimed.
create or replace function hwqueue.is_stale(p_class hwqueue.placement_class, p_shard int) returns boolean
language plpgsql stable
as $$
begin
  return p_class.service_id is not null and p_class.away_from <> hwqueue.service_away_from(p_class.service_id, p_shard);
end
$$;

-- Gives stale classes among these the terms that their service's policy asks for now. The terms are counted anew: claims of these classes may be
-- under way that count for nothing yet. Whoever judges new classes calls it, too, since a spawn may write a class while the policy
-- changes; with p_waits it waits for whom it must tell, else, if the shard's row is taken, the classes stay stale for now.
-- Locks: the shard's row; profile rows by id; the classes; terms.
create or replace function hwqueue.rebind_classes(p_class_ids bigint[], p_waits boolean, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_class hwqueue.placement_class;
begin
  perform 1 from hwqueue.placement_class c
  where c.shard_id = p_shard and c.class_id = any (p_class_ids) and c.service_id is not null and hwqueue.is_stale(c, p_shard);
  if not found then
    return;
  elsif p_waits then
    perform 1 from hwqueue.shard s where s.shard_id = p_shard for no key update;
    perform 1 from hwqueue.profile p where p.shard_id = p_shard order by p.profile_id for no key update;
    -- what nodes remember as blocked may not be any more (known_candidates)
    update hwqueue.profile p set classes_seen = p.classes_seen
    where p.shard_id = p_shard and p.profile_id = any (array(
      select distinct e.profile_id from hwqueue.profile_eligibility e
      where e.shard_id = p_shard and e.class_id = any (p_class_ids)));
  else
    perform 1 from hwqueue.shard s where s.shard_id = p_shard for no key update skip locked;
    if not found then
      return;
    end if;
  end if;
  for v_class in
    select c.* from hwqueue.placement_class c
    where c.shard_id = p_shard and c.class_id = any (p_class_ids) and hwqueue.is_stale(c, p_shard) order by c.class_id
  loop
    v_class.away_from := hwqueue.service_away_from(v_class.service_id, p_shard);
    v_class := hwqueue.bind_terms(v_class);
    update hwqueue.placement_class c
    set away_from = v_class.away_from, required = v_class.required, preferred = v_class.preferred, spread = v_class.spread,
        terms = v_class.terms, terms_written = false
    where c.shard_id = p_shard and c.class_id = v_class.class_id;
    delete from hwqueue.class_rule r where r.shard_id = p_shard and r.class_id = v_class.class_id;
    perform hwqueue.mark_checked(array[v_class.class_id], p_shard);
    if p_waits then
      perform hwqueue.move_counts(null, v_class.class_id, p_shard);
    end if;
    update hwqueue.term t set published_at = null, barrier = null, written_xid = pg_current_xact_id()
    where t.shard_id = p_shard and t.digest in (select (s.value ->> 'digest')::bigint from jsonb_array_elements(v_class.terms) s);
  end loop;
end
$$;

-- Puts the terms in force that speak of a service in its failure domain, or of any service in that of a queue, where that has changed: they
-- are counted anew, in other places, and until that is done nobody decides by them, nor may what they select be claimed.
-- Locks: the shard's row.
create or replace function hwqueue.move_terms(p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_term hwqueue.term;
  v_new_id bigint;
begin
  perform 1 from hwqueue.term t
  where t.shard_id = p_shard and t.spec ->> 'domain' = 'failure' and t.domain <> hwqueue.term_domain(t.spec, p_shard);
  if not found then
    return;
  end if;
  perform 1 from hwqueue.shard s where s.shard_id = p_shard for no key update;
  for v_term in
    select t.* from hwqueue.term t
    where t.shard_id = p_shard and t.spec ->> 'domain' = 'failure' and t.domain <> hwqueue.term_domain(t.spec, p_shard)
  loop
    delete from hwqueue.term t where t.shard_id = p_shard and t.term_id = v_term.term_id;
    insert into hwqueue.term (shard_id, digest, spec, use, domain, anchors, written_xid, holds_up, created_at)
    values (p_shard, v_term.digest, v_term.spec, v_term.use, hwqueue.term_domain(v_term.spec, p_shard), v_term.anchors, '0', true, hwqueue.clock())
    returning term_id into v_new_id;
    update hwqueue.class_term m set term_id = v_new_id where m.shard_id = p_shard and m.term_id = v_term.term_id;
    update hwqueue.class_rule r set term_id = v_new_id where r.shard_id = p_shard and r.term_id = v_term.term_id;
    delete from hwqueue.term_count k where k.shard_id = p_shard and k.term_id = v_term.term_id;
  end loop;
end
$$;
