//! The pure core: wherever the events of an order come from, in whatever order and number, it ends the same.

use proptest::prelude::*;
use uuid::Uuid;
use waybill_event::OrderEvent;
use waybill_event::order::payment_method;
use waybill_point::points::Targets;
use waybill_point::points::ledger::{Account, Entry, Kind, OrderPoints};

use crate::histories::{placed, walk};

struct End {
    order: OrderPoints,
    account: Account,
    entries: Vec<Entry>,
}

fn deliver(states: &[&OrderEvent], account: Account) -> End {
    let first = states[0];
    let mut end =
        End { order: OrderPoints::new(first.order_id, first.customer_id), account, entries: Vec::new() };
    for state in states {
        let targets = Targets::of(state).expect("a state of the machine");
        let Some(change) = end.order.apply(state, targets).expect("its own customer") else { continue };
        let decided = change.decide(end.account).expect("no overflow");
        (end.order, end.account) = (decided.order, decided.account);
        end.entries.extend(decided.entries.into_iter().map(|(entry, _)| entry));
    }
    end
}

fn sum(entries: &[Entry], kinds: &[Kind]) -> i64 {
    entries.iter().filter(|entry| kinds.contains(&entry.kind)).map(|entry| entry.amount).sum()
}

fn check_ledger(before: Account, end: &End) {
    let of = |kind| sum(&end.entries, &[kind]);
    let available = sum(&end.entries, &[Kind::Release, Kind::Restore, Kind::Earn])
        - sum(&end.entries, &[Kind::Hold, Kind::EarnReversal]);
    let held = of(Kind::Hold) - of(Kind::Release) - of(Kind::Spend);
    assert_eq!((before.available + available, before.held + held), (end.account.available, end.account.held));
    assert_eq!(held, end.order.held);
    assert_eq!(of(Kind::Earn) - of(Kind::EarnReversal), end.order.earned);
    assert_eq!(of(Kind::Spend) - of(Kind::Restore), end.order.spent - end.order.restored);
    let mut unique: Vec<_> = end.entries.iter().map(|e| (e.kind.as_str(), e.reference.as_str())).collect();
    unique.sort_unstable();
    let all = unique.len();
    unique.dedup();
    assert_eq!(unique.len(), all, "an entry's kind and reference name it");
    assert!(end.entries.iter().all(|entry| entry.amount > 0));
}

prop_compose! {
    fn histories()(
        total in prop_oneof![Just(0_i64), 1..=10_000_i64, Just(1_i64 << 50)],
        rate in 0..=10_000_i32,
        on_delivery in any::<bool>(),
        choices in prop::collection::vec(any::<(u8, u32)>(), 0..10),
    ) -> Vec<OrderEvent> {
        let method = if on_delivery { payment_method::ON_DELIVERY } else { payment_method::CARD };
        let mut first = placed(Uuid::now_v7(), total, method);
        first.earn_rate_bp = rate;
        walk(first, &choices)
    }
}

prop_compose! {
    /// A history, and deliveries of it: any of its states any number of times in any order, the newest at least once.
    fn deliveries()(history in histories())(
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        newest in any::<prop::sample::Index>(),
        history in Just(history),
    ) -> (Vec<OrderEvent>, Vec<usize>) {
        let mut order: Vec<usize> = picks.iter().map(|pick| pick.index(history.len())).collect();
        order.insert(newest.index(order.len() + 1), history.len() - 1);
        (history, order)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_arrival_ends_where_the_order_of_versions_ends(
        (history, deliveries) in deliveries(),
        available in -1_000..20_000_i64,
    ) {
        // Another order of the customer holds 7.
        let before = Account { available, held: 7 };
        let straight = deliver(&history.iter().collect::<Vec<_>>(), before);
        let shuffled = deliver(&deliveries.iter().map(|place| &history[*place]).collect::<Vec<_>>(), before);
        prop_assert_eq!(&straight.order, &shuffled.order);
        prop_assert_eq!(straight.account, shuffled.account);
        check_ledger(before, &straight);
        check_ledger(before, &shuffled);
    }

    #[test]
    fn a_finished_order_leaves_what_its_newest_state_says(history in histories()) {
        let before = Account { available: 1 << 51, held: 0 };
        let end = deliver(&history.iter().collect::<Vec<_>>(), before);
        let newest = history.last().expect("not empty");
        let targets = Targets::of(newest).expect("a state of the machine");
        prop_assert_eq!((end.order.spent, end.order.restored), (targets.spent, targets.restored));
        prop_assert_eq!(end.order.earned, targets.earned);
        prop_assert_eq!(end.order.held, targets.hold.map_or(0, |hold| hold.amount));
        prop_assert_eq!(
            end.account.available - before.available,
            targets.restored + targets.earned - targets.spent - end.order.held
        );
    }
}
