//! Making a plan: select, judge, ask the broker and the services, write down.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::Utc;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::check::{self, Asked, Question};
use super::judge::{Bounds, Candidate, Skip, judge};
use super::view::{Plan, PlanRequest, Skipped, Summary, Target};
use super::{Error, store, topics};
use crate::State;
use crate::api::{Api, Operator};
use crate::audit::{self, Entry};
use crate::letters::{self, Selection, key_text};
use crate::services::contract::{ReplaySafety, Subscription};

/// Letters of a plan when nothing is said.
const LIMIT: i64 = 100;
/// Ids at most.
const MAX_IDS: usize = 1000;
/// Skipped letters that are shown one by one.
const SHOWN: usize = 100;

/// A letter at its place in the plan.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) item_id: Uuid,
    pub(super) record_id: i64,
    pub(super) target: Option<String>,
    pub(super) skip: Option<(Skip, Option<String>)>,
}

/// Who reads a group's replays; names without prefix.
struct Consumers {
    known: HashMap<(String, String), (String, Subscription)>,
    unreachable: Vec<String>,
}

/// Makes a plan and keeps it.
pub(super) async fn make(api: &Api, operator: &Operator, request: PlanRequest) -> Result<Plan, Error> {
    let bounds = bounds(api);
    let (letters, matched) = select(api, &request, bounds).await?;
    let consumers = consumers(api, operator, &letters).await;
    let mut placed = place(api, &letters, &consumers, bounds).await?;
    let against = ask(api, operator, &letters, &placed, &consumers).await?;
    for (index, skip) in against {
        placed[index].skip = Some(skip);
    }
    hold_back(&letters, &mut placed, |letter| consumers.keep_order(api, letter));
    let (letters, placed): (Vec<_>, Vec<_>) =
        letters.into_iter().zip(placed).filter(|(letter, _)| letter.chosen).unzip();
    let summary = summary(api, matched, &letters, &placed, &consumers);
    let skipped = placed.iter().filter(|letter| letter.skip.is_some()).count();
    let plan = Plan {
        plan_id: Uuid::now_v7(),
        made_at: Utc::now(),
        made_by: operator.principal.customer,
        hash: hash(&placed),
        ready: (placed.len() - skipped) as i64,
        skipped: skipped as i64,
        matched,
        reconcile_first: summary.reconcile_first,
        targets: summary.targets.clone(),
        skipped_items: summary.skipped_items.clone(),
        request,
    };
    let mut tx = waybill_service::postgres::begin(&api.pool).await?;
    store::insert(&mut tx, &plan, &summary, &placed).await?;
    let entry = Entry::new(&operator.principal, "plan", &plan.request)
        .plan(&plan.hash)
        .reference(plan.plan_id)
        .count("ready", plan.ready)
        .count("skipped", plan.skipped)
        .count("matched", plan.matched);
    audit::add(&mut tx, &entry).await?;
    tx.commit().await?;
    Ok(plan)
}

fn bounds(api: &Api) -> Bounds {
    let timeout = chrono::TimeDelta::from_std(api.settings.outcome_timeout).unwrap_or_default();
    Bounds { loop_cap: api.settings.loop_cap, overdue: Utc::now() - timeout }
}

/// The letters that are known now, and those beside them that count for the order of their keys: what dies from here on
/// is not in the plan. With the number of letters that were asked for, those beyond the limit included.
async fn select(api: &Api, request: &PlanRequest, bounds: Bounds) -> Result<(Vec<Candidate>, i64), Error> {
    let limit = request.limit.unwrap_or(LIMIT);
    let mut tx = letters::store::begin(&api.pool).await?;
    let (ids, matched) = match &request.ids {
        Some(ids) if ids.len() > MAX_IDS => {
            return Err(Error::Invalid("/ids", format!("must have at most {MAX_IDS} elements")));
        }
        Some(ids) => {
            let ids: BTreeSet<Uuid> = ids.iter().copied().collect();
            let matched = ids.len() as i64;
            (ids.into_iter().collect(), matched)
        }
        None if request.filter.is_bare() && !request.all => return Err(Error::Unfiltered),
        None => {
            let selection = request.filter.select(&mut tx, &api.names).await?;
            let states = selection
                .states
                .clone()
                .unwrap_or_else(|| State::UNSETTLED.iter().map(|state| state.name().to_owned()).collect());
            let selection = Selection { states: Some(states), ..selection };
            let oldest = letters::store::oldest(&mut tx, &selection, Some(bounds.loop_cap), limit).await?;
            (oldest.letters.into_iter().map(|letter| letter.0).collect::<Vec<_>>(), oldest.matched)
        }
    };
    let beside = store::first_beside(&mut tx, &ids, bounds.overdue).await?;
    let letters = store::candidates(&mut tx, &ids, &beside).await?;
    tx.commit().await?;
    if request.ids.is_some() {
        let known: BTreeSet<Uuid> = letters.iter().map(|letter| letter.item_id).collect();
        if let Some(unknown) = ids.iter().find(|id| !known.contains(id)) {
            return Err(Error::UnknownItem(*unknown));
        }
    }
    Ok((letters, matched))
}

async fn consumers(api: &Api, operator: &Operator, letters: &[Candidate]) -> Consumers {
    let mut consumers = Consumers { known: HashMap::new(), unreachable: Vec::new() };
    if letters.is_empty() {
        return consumers;
    }
    for (service, said) in api.services.consumers(&operator.token).await {
        match said {
            Ok(subscriptions) => {
                for subscription in subscriptions {
                    let name = (subscription.topic.clone(), subscription.group.clone());
                    consumers.known.insert(name, (service.clone(), subscription));
                }
            }
            Err(fault) => consumers.unreachable.push(fault.to_string()),
        }
    }
    consumers
}

impl Consumers {
    fn of(&self, api: &Api, letter: &Candidate) -> Option<&(String, Subscription)> {
        let topic = api.names.plain(&letter.source_topic)?;
        let group = api.names.plain(&letter.consumer_group)?;
        self.known.get(&(topic.to_owned(), group.to_owned()))
    }

    /// Whether the letter's group relies on the order of its source.
    fn keep_order(&self, api: &Api, letter: &Candidate) -> bool {
        self.of(api, letter).is_some_and(|(_, subscription)| subscription.order != "unordered")
    }
}

async fn place(
    api: &Api,
    letters: &[Candidate],
    consumers: &Consumers,
    bounds: Bounds,
) -> Result<Vec<Placed>, Error> {
    let target = |letter: &Candidate| {
        let topic =
            api.names.replay_topic(&letter.dlt_topic, &letter.source_topic, &letter.consumer_group)?;
        // By construction neither; a copy into itself would never end.
        (topic != letter.dlt_topic && topic != letter.source_topic).then_some(topic)
    };
    let topics: BTreeSet<String> = letters.iter().filter_map(target).collect();
    let existing = topics::partitions(api.runs.sender(), topics).await.map_err(Error::Broker)?;
    let place = |letter: &Candidate| {
        let target = target(letter);
        let skip = judge(letter, bounds).map(|skip| (skip, None)).or_else(|| {
            let Some(topic) = &target else { return Some((Skip::NoTarget, None)) };
            match consumers.of(api, letter) {
                Some((_, subscription)) if subscription.replay_safety == ReplaySafety::Never => {
                    return Some((Skip::ReplaySafetyNever, None));
                }
                Some(_) => {}
                None if consumers.unreachable.is_empty() => return Some((Skip::NoService, None)),
                None => return Some((Skip::ServiceUnreachable, consumers.unreachable.first().cloned())),
            }
            (!existing.contains_key(topic)).then(|| (Skip::TargetMissing, Some(topic.clone())))
        });
        Placed { item_id: letter.item_id, record_id: letter.record_id, target, skip }
    };
    Ok(letters.iter().map(place).collect())
}

async fn ask(
    api: &Api,
    operator: &Operator,
    letters: &[Candidate],
    placed: &[Placed],
    consumers: &Consumers,
) -> Result<HashMap<usize, (Skip, Option<String>)>, Error> {
    let mut questions: BTreeMap<(String, String), (Question, Vec<Asked>)> = BTreeMap::new();
    let wanted = |(index, letter): &(usize, &Candidate)| letter.chosen && placed[*index].skip.is_none();
    for (index, letter) in letters.iter().enumerate().filter(wanted) {
        let Some((service, subscription)) = consumers.of(api, letter) else { continue };
        let question = Question {
            service: service.clone(),
            topic: subscription.topic.clone(),
            group: subscription.group.clone(),
        };
        questions
            .entry((question.topic.clone(), question.group.clone()))
            .or_insert_with(|| (question, Vec::new()))
            .1
            .push(Asked::new(index, letter));
    }
    Ok(check::ask(&api.pool, &api.services, &operator.token, questions.into_values().collect()).await?)
}

/// Leaves out what would overtake an earlier letter of its key: one that is left out and not settled, one that another run
/// has in flight, and, where the group keeps an order, one that was not asked for.
fn hold_back(letters: &[Candidate], placed: &mut [Placed], keeps_order: impl Fn(&Candidate) -> bool) {
    let mut held: HashMap<(&str, &str, &[u8]), Uuid> = HashMap::new();
    for (letter, placed) in letters.iter().zip(placed) {
        let Some(key) = &letter.key else { continue };
        let key = (letter.source_topic.as_str(), letter.consumer_group.as_str(), key.as_slice());
        let skip = placed.skip.as_ref().map(|(skip, _)| *skip);
        let holds = match skip {
            Some(skip) if letter.chosen => !skip.is_settled(),
            None if letter.chosen => false,
            skip => skip == Some(Skip::InFlight) || keeps_order(letter),
        };
        if holds {
            held.entry(key).or_insert(letter.item_id);
        } else if let (None, Some(earlier)) = (skip, held.get(&key)) {
            placed.skip = Some((Skip::EarlierLeftOut, Some(format!("behind {earlier}"))));
        }
    }
}

/// A target while it is counted: with its keys, and the letters without.
type Counted<'a> = (Target, BTreeSet<&'a [u8]>, i64);

fn summary(
    api: &Api,
    matched: i64,
    letters: &[Candidate],
    placed: &[Placed],
    consumers: &Consumers,
) -> Summary {
    let mut targets: BTreeMap<(&str, &str, &str), Counted<'_>> = BTreeMap::new();
    let mut shown = Vec::new();
    for (letter, placed) in letters.iter().zip(placed) {
        let name = (letter.dlt_topic.as_str(), letter.source_topic.as_str(), letter.consumer_group.as_str());
        let (target, keys, keyless) = targets.entry(name).or_insert_with(|| {
            let consumer = consumers.of(api, letter);
            let target = Target {
                topic: letter.dlt_topic.clone(),
                source_topic: letter.source_topic.clone(),
                consumer_group: letter.consumer_group.clone(),
                target_topic: placed.target.clone(),
                service: consumer.map(|(service, _)| service.clone()),
                replay_safety: consumer.map(|(_, subscription)| subscription.replay_safety),
                order: consumer.map(|(_, subscription)| subscription.order.clone()),
                ready: 0,
                keys: 0,
                first_key: None,
                last_key: None,
                skipped: BTreeMap::new(),
            };
            (target, BTreeSet::new(), 0)
        });
        match (&placed.skip, &letter.key) {
            (Some((reason, detail)), _) => {
                *target.skipped.entry(*reason).or_default() += 1;
                if shown.len() < SHOWN {
                    let (reason, detail) = (*reason, detail.clone());
                    shown.push(Skipped { item_id: letter.item_id, reason, detail });
                }
                continue;
            }
            (None, Some(key)) => _ = keys.insert(key),
            (None, None) => *keyless += 1,
        }
        target.ready += 1;
    }
    let finish = |(mut target, keys, keyless): Counted<'_>| {
        target.keys = keys.len() as i64 + keyless;
        target.first_key = keys.first().map(|key| key_text(key));
        target.last_key = keys.last().map(|key| key_text(key));
        target
    };
    let targets: Vec<Target> = targets.into_values().map(finish).collect();
    let asks =
        |target: &Target| target.ready > 0 && target.replay_safety == Some(ReplaySafety::ReconcileFirst);
    Summary { reconcile_first: targets.iter().any(asks), targets, skipped_items: shown, matched }
}

/// Of what is sent, where to, in which order.
fn hash(placed: &[Placed]) -> String {
    let mut hash = Sha256::new();
    for letter in placed.iter().filter(|letter| letter.skip.is_none()) {
        hash.update(letter.item_id);
        hash.update(letter.record_id.to_be_bytes());
        hash.update(letter.target.as_deref().unwrap_or_default());
        hash.update([0]);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
