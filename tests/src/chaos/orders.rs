//! Orders through everything while services are killed and restarted and Kafka is restarted once: nothing lost,
//! nothing doubled, order per key kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rand::Rng;
use tokio::time::sleep;
use waybill_testkit::Broker;

use super::{between, dice};
use crate::{Client, System, invariants};

/// How large a run is.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Orders to place.
    pub orders: usize,
    /// Clients that place them at the same time.
    pub clients: usize,
    /// Names the run.
    pub seed: u64,
}

/// What a run showed.
#[derive(Debug, Default)]
pub struct Report {
    /// Orders that a client was told of.
    pub placed: usize,
    /// Requests that had to be sent again.
    pub repeated: usize,
    /// Services killed.
    pub kills: usize,
    /// Restarts of the broker.
    pub restarts: usize,
    /// Time of placing.
    pub placing: Duration,
    /// From the last order until nothing was on its way.
    pub settling: Duration,
    /// Broken invariants.
    pub broken: Vec<String>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} orders in {:.1} s, settled {:.1} s later; {} requests repeated, {} kills, {} broker restarts; {} invariants broken",
            self.placed,
            self.placing.as_secs_f64(),
            self.settling.as_secs_f64(),
            self.repeated,
            self.kills,
            self.restarts,
            self.broken.len()
        )
    }
}

/// Runs a plan.
///
/// # Errors
/// Orders stay on their way.
pub async fn run(plan: Plan) -> anyhow::Result<Report> {
    let mut broker = Broker::start().await;
    let mut system = System::start_on(&broker.bootstrap(), &[("RATE_LIMIT", "0")]).await;
    let mut report = Report::default();
    let (placed, repeated) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let clients = (0..plan.clients)
        .map(|n| place(system.customer(), plan.orders / plan.clients, n, placed.clone(), repeated.clone()))
        .collect::<Vec<_>>();
    let started = Instant::now();
    let mut clients = tokio::task::JoinSet::from_iter(clients);
    let mut dice = dice(plan.seed);
    let total = plan.orders / plan.clients * plan.clients;
    while placed.load(Ordering::Relaxed) < total || report.restarts == 0 {
        sleep(between(&mut dice, 500, 2_500)).await;
        if report.restarts == 0 && placed.load(Ordering::Relaxed) > total / 2 {
            broker.kill();
            sleep(between(&mut dice, 500, 3_000)).await;
            broker.resume().await;
            report.restarts += 1;
            eprintln!("{:6.1} s: broker restarted", started.elapsed().as_secs_f64());
            continue;
        }
        let service = ["relay", "point", "notification"][dice.random_range(0..3)];
        system.process(service).kill().await;
        sleep(between(&mut dice, 0, 1_000)).await;
        system.spawn(service, None);
        report.kills += 1;
        eprintln!(
            "{:6.1} s: {service} killed, {} of {total} placed",
            started.elapsed().as_secs_f64(),
            placed.load(Ordering::Relaxed)
        );
    }
    while let Some(client) = clients.join_next().await {
        client?;
    }
    report.placing = started.elapsed();
    let settling = Instant::now();
    let pools = system.pools();
    loop {
        let waiting = invariants::waiting(&pools).await?;
        if waiting.is_empty() {
            break;
        }
        eprintln!("{:6.1} s: {} on their way", started.elapsed().as_secs_f64(), waiting.len());
        let patience = Duration::from_secs(60) + report.placing;
        anyhow::ensure!(
            settling.elapsed() < patience,
            "{} on their way, first {:?}",
            waiting.len(),
            waiting.first()
        );
        sleep(Duration::from_secs(1)).await;
    }
    report.settling = settling.elapsed();
    report.placed = placed.load(Ordering::Relaxed);
    report.repeated = repeated.load(Ordering::Relaxed);
    for finding in invariants::check(&pools).await? {
        report.broken.extend(finding.broken.iter().take(5).map(|row| format!("{}: {row}", finding.rule)));
    }
    Ok(report)
}

/// One customer's orders, one after the other, each under one key until it is taken.
async fn place(
    customer: Client,
    orders: usize,
    client: usize,
    placed: Arc<AtomicUsize>,
    repeated: Arc<AtomicUsize>,
) {
    for n in 0..orders {
        let key = format!("{client}-{n}");
        let method = if n % 10 == 9 { "CARD" } else { "ON_DELIVERY" };
        loop {
            match customer.place(&key, "CUP-1", 1, method, None).await {
                Ok(answer) if answer.status == 201 => break,
                _ => {
                    repeated.fetch_add(1, Ordering::Relaxed);
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
        placed.fetch_add(1, Ordering::Relaxed);
    }
}
