//! One message dies, and comes back: found, planned, replayed too early, repaired, replayed, resolved, with the
//! commands that an operator types.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use uuid::Uuid;
use waybill_testkit::jwt::Issuer;
use waybill_tests::{Client, Operator, poison};

use crate::show::{show, tail};
use crate::{PATIENCE, Story};

const REPLAY_TOPICS: [&str; 2] = ["orders.v1.notification.replay", "points.v1.notification.replay"];

/// Whose message dies.
struct Victim {
    customer: Uuid,
    order: Uuid,
    /// Id of the event that tells of the order.
    message: Uuid,
    /// Id of the dead letter in the console.
    item: String,
}

/// What the notification group has done so far with the message.
#[derive(Debug, PartialEq)]
struct Told {
    processed: Vec<String>,
    notifications: i64,
    replayed: Vec<usize>,
}

impl Story {
    /// The whole of it. Repairs the cause whatever happens: the stack may go on.
    pub(crate) async fn dead_letter(&self) -> anyhow::Result<()> {
        poison::repair(&self.pools.points).await?;
        let ended = self.die_and_return().await;
        poison::repair(&self.pools.points).await?;
        ended
    }

    async fn die_and_return(&self) -> anyhow::Result<()> {
        let issuer = Issuer::open(&self.status.jwt_dir)?;
        let operator = Operator::new(&issuer, self.status.http("console")?, &["view", "act"]);
        let customer = Uuid::now_v7();
        println!("A dead letter\n\n1. Something goes wrong in the points database: it refuses one customer.");
        println!("   sql> {}", poison::cause(customer));
        poison::refuse(&self.pools.points, customer).await?;
        let victim = self.orders_among_others(&issuer, &operator, customer).await?;
        self.settle().await?;
        self.others_flow(&victim).await?;
        let told = self.told(&victim).await?;

        println!("3. An operator looks: groups of one cause first, then the letter.");
        let key = format!("--key {}", victim.order);
        run(&operator, "dlt groups --group point --state open", 0).await?;
        run(&operator, &format!("dlt list {key}"), 0).await?;
        run(&operator, &format!("dlt show {}", victim.item), 0).await?;

        println!("4. What would a replay send, and where?");
        run(&operator, &format!("dlt plan {key}"), 0).await?;
        println!("5. Too early: the cause is still there, so it fails again, and says so by its exit code.");
        run(&operator, &format!("dlt replay {key}"), 1).await?;
        state(&operator, &victim, "failed_again").await?;

        println!("6. The cause is repaired.\n   sql> {}\n", poison::REPAIR);
        poison::repair(&self.pools.points).await?;
        println!("7. Replayed to the one group that failed, until the group says what became of it.");
        run(&operator, &format!("dlt replay {key}"), 0).await?;
        run(&operator, &format!("dlt list {key}"), 0).await?;
        state(&operator, &victim, "resolved").await?;
        self.settle().await?;
        self.points_are_there(&victim).await?;

        let after = self.told(&victim).await?;
        ensure!(told == after, "the notification group got the message again: {told:?}, then {after:?}");
        println!("   The notification group, which had not failed, was sent nothing by either replay.\n");
        println!("8. Who did what: the audit, to which rows are only added.");
        run(&operator, &format!("audit --subject {}", operator.subject), 0).await?;
        audited(&operator).await
    }

    async fn orders_among_others(
        &self,
        issuer: &Issuer,
        operator: &Operator,
        customer: Uuid,
    ) -> anyhow::Result<Victim> {
        let base = self.status.http("order")?;
        let mut orders = Vec::new();
        for customer in [Uuid::now_v7(), customer, Uuid::now_v7()] {
            let client = Client::new(base, customer, issuer.token(customer, "customer"))?;
            let key = Uuid::new_v4().to_string();
            let answer = client.place(&key, "CUP-1", 1, "ON_DELIVERY", None).await?;
            ensure!(answer.status == 201, "an order was refused: {answer:?}");
            orders.push(answer.id()?);
        }
        let order = orders[1];
        println!("\n2. Three orders, the second by that customer: {order}");
        let event = "select id from messaging.outbox where aggregateid = $1 order by seq";
        let message: Uuid =
            sqlx::query_scalar(event).bind(order.to_string()).fetch_one(&self.pools.orders).await?;
        let item = found(operator, message).await?;
        Ok(Victim { customer, order, message, item })
    }

    /// What dies alone holds up nobody.
    async fn others_flow(&self, victim: &Victim) -> anyhow::Result<()> {
        let sql = "select count(*) from point_entry where order_id = $1";
        let entries: i64 = sqlx::query_scalar(sql).bind(victim.order).fetch_one(&self.pools.points).await?;
        ensure!(entries == 0, "the refused order has {entries} entries in the ledger");
        println!("   The others have their points; its message died, and nobody waits for it.\n");
        Ok(())
    }

    async fn points_are_there(&self, victim: &Victim) -> anyhow::Result<()> {
        let rows: Vec<(String, i64, i64)> = sqlx::query_as(
            "select e.kind, e.amount, a.available from point_entry e
             join point_account a on a.customer_id = e.customer_id where e.order_id = $1",
        )
        .bind(victim.order)
        .fetch_all(&self.pools.points)
        .await?;
        ensure!(rows.len() == 1, "the order has {} entries in the ledger, not one", rows.len());
        let of = [tail(&victim.customer.to_string()), tail(&victim.order.to_string())];
        let rows = rows.into_iter().map(|(kind, amount, available)| {
            [of.to_vec(), vec![kind, format!("{amount:+}"), available.to_string()]].concat()
        });
        show("Its points are there, once", &["customer", "order", "entry", "points", "balance"], rows);
        Ok(())
    }

    async fn told(&self, victim: &Victim) -> anyhow::Result<Told> {
        let processed = sqlx::query_scalar(
            "select outcome || ' at ' || processed_at || ' in ' || xmin from messaging.processed_message where message_id = $1",
        )
        .bind(victim.message)
        .fetch_all(&self.pools.notifications)
        .await?;
        let notifications = sqlx::query_scalar(
            "select count(*) from notification where message_id = $1 and sent_at is not null",
        )
        .bind(victim.message)
        .fetch_one(&self.pools.notifications)
        .await?;
        ensure!(notifications == 1, "the customer was told {notifications} times of the order, not once");
        let mut replayed = Vec::new();
        for topic in REPLAY_TOPICS {
            replayed.push(self.topics.read(topic).await.len());
        }
        Ok(Told { processed, notifications, replayed })
    }
}

/// Waits until the console has the letter of a message; its id.
async fn found(operator: &Operator, message: Uuid) -> anyhow::Result<String> {
    let started = Instant::now();
    loop {
        let page = operator.ask(&format!("dlt list --message-id {message}")).await?;
        if let Some(item) = page["items"][0]["item_id"].as_str() {
            let took = started.elapsed().as_millis();
            println!("   The console has its letter {took} ms later.");
            return Ok(item.to_owned());
        }
        if started.elapsed() > PATIENCE {
            bail!("message {message} is not in the console after {PATIENCE:?}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn state(operator: &Operator, victim: &Victim, state: &str) -> anyhow::Result<()> {
    let letter = operator.ask(&format!("dlt show {}", victim.item)).await?;
    ensure!(letter["state"] == state, "the letter is not {state}: {letter}");
    ensure!(letter["error_code"] == poison::ERROR_CODE, "it died of something else: {letter}");
    ensure!(letter["payload"]["masked"] == true, "an operator without the role sees the payload");
    Ok(())
}

/// Two replays, each begun and ended.
async fn audited(operator: &Operator) -> anyhow::Result<()> {
    let acts = operator.ask(&format!("audit --subject {}", operator.subject)).await?;
    for verb in ["replay", "replay_finished"] {
        let acts = acts["acts"].as_array().context("a list of acts")?;
        let count = acts.iter().filter(|act| act["verb"] == verb).count();
        ensure!(count == 2, "{count} lines of {verb} in the audit, not 2: {}", Value::from(acts.clone()));
    }
    Ok(())
}

/// Runs a command and shows it with its output as it comes. Its progress bar and its errors go to the terminal.
async fn run(operator: &Operator, line: &str, code: i32) -> anyhow::Result<()> {
    println!("   $ waybill-console {line}");
    let mut child = operator.command(line).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
    while let Some(line) = lines.next_line().await? {
        println!("   │ {}", line.trim_end());
    }
    let ended = child.wait().await?.code();
    println!("   └ exit code {}\n", ended.map_or_else(|| "none".to_owned(), |code| code.to_string()));
    ensure!(ended == Some(code), "`waybill-console {line}` ended with {ended:?}, not with {code}");
    Ok(())
}
