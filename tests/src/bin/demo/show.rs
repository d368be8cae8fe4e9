//! What became of the orders, as tables.

use std::collections::{BTreeMap, HashSet};

use anyhow::{Context, ensure};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, Table};
use uuid::Uuid;
use waybill_testkit::topics::Record;

use crate::Story;

impl Story {
    pub(crate) async fn show_orders(&self) -> anyhow::Result<()> {
        let rows: Vec<(Uuid, Uuid, String, String, i64, i64)> = sqlx::query_as(
            "select id, customer_id, status, payment_method, total, version from orders where id = any($1) order by created_at",
        )
        .bind(&self.orders)
        .fetch_all(&self.pools.orders)
        .await?;
        let rows = rows.into_iter().map(|(id, customer, status, method, total, version)| {
            vec![
                id.to_string(),
                tail(&customer.to_string()),
                status,
                method,
                format!("{total} KRW"),
                version.to_string(),
            ]
        });
        show("Orders", &["order", "customer", "status", "payment", "total", "version"], rows);
        Ok(())
    }

    pub(crate) async fn show_outbox(&self) -> anyhow::Result<()> {
        let keys: Vec<String> = self.orders.iter().map(Uuid::to_string).collect();
        let mut rows = Vec::new();
        for (database, pool) in [("orders", &self.pools.orders), ("points", &self.pools.points)] {
            let found: Vec<(i64, String, String, i16, bool, Option<i64>)> = sqlx::query_as(
                "select seq, type, aggregateid, bucket, sent_at is not null,
                        (extract(epoch from sent_at - created_at) * 1000)::bigint
                 from messaging.outbox where aggregateid = any($1) order by seq",
            )
            .bind(&keys)
            .fetch_all(pool)
            .await?;
            rows.extend(found.into_iter().map(|(seq, r#type, key, bucket, sent, after)| {
                let sent =
                    if sent { format!("after {} ms", after.unwrap_or_default()) } else { "no".to_owned() };
                vec![database.to_owned(), seq.to_string(), r#type, tail(&key), bucket.to_string(), sent]
            }));
        }
        show("Outbox", &["database", "seq", "event", "order", "bucket", "sent"], rows);
        Ok(())
    }

    pub(crate) async fn show_topics(&self) -> anyhow::Result<Vec<Record>> {
        let ours: HashSet<String> = self.orders.iter().map(Uuid::to_string).collect();
        let mut rows = Vec::new();
        let mut records = Vec::new();
        for topic in ["orders.v1", "points.v1"] {
            let found: Vec<_> =
                self.topics.read(topic).await.into_iter().filter(|r| ours.contains(&r.key_text())).collect();
            for record in &found {
                rows.push(vec![
                    topic.to_owned(),
                    record.partition.to_string(),
                    record.offset.to_string(),
                    tail(&record.key_text()),
                    record.header("ce_type").unwrap_or_default().to_owned(),
                    record.header("ce_id").unwrap_or_default().to_owned(),
                ]);
            }
            records.extend(found);
        }
        show("Topics", &["topic", "partition", "offset", "key", "ce_type", "ce_id"], rows);
        Ok(records)
    }

    pub(crate) async fn show_ledger(&self) -> anyhow::Result<()> {
        let rows: Vec<(Uuid, Uuid, String, i64, i64)> = sqlx::query_as(
            "select e.customer_id, e.order_id, e.kind, e.amount, a.available
             from point_entry e join point_account a on a.customer_id = e.customer_id
             where e.order_id = any($1) order by e.created_at",
        )
        .bind(&self.orders)
        .fetch_all(&self.pools.points)
        .await?;
        let rows = rows.into_iter().map(|(customer, order, kind, amount, available)| {
            vec![
                tail(&customer.to_string()),
                tail(&order.to_string()),
                kind,
                format!("{amount:+}"),
                available.to_string(),
            ]
        });
        show("Ledger", &["customer", "order", "entry", "points", "balance"], rows);
        Ok(())
    }

    pub(crate) async fn show_notifications(&self) -> anyhow::Result<()> {
        let rows: Vec<(i64, Uuid, String, bool)> = sqlx::query_as(
            "select seq, order_id, kind, sent_at is not null from notification where order_id = any($1) order by seq",
        )
        .bind(&self.orders)
        .fetch_all(&self.pools.notifications)
        .await?;
        let rows = rows.into_iter().map(|(seq, order, kind, sent)| {
            vec![seq.to_string(), tail(&order.to_string()), kind, if sent { "yes" } else { "no" }.to_owned()]
        });
        show("Notifications", &["seq", "order", "event", "sent"], rows);
        Ok(())
    }

    pub(crate) async fn show_trace(&self, records: &[Record]) -> anyhow::Result<()> {
        let key = self.traced.to_string();
        let mut seen: BTreeMap<&str, Option<String>> = BTreeMap::new();
        let outbox = "select traceparent from messaging.outbox where aggregateid = $1 order by seq limit 1";
        for (place, pool) in
            [("1 orders outbox", &self.pools.orders), ("3 points outbox", &self.pools.points)]
        {
            seen.insert(place, sqlx::query_scalar(outbox).bind(&key).fetch_one(pool).await?);
        }
        for (place, r#type) in
            [("2 orders.v1 record", "waybill.order.placed"), ("4 points.v1 record", "waybill.points.earned")]
        {
            let record = records.iter().find(|r| r.key_text() == key && r.header("ce_type") == Some(r#type));
            let record = record.with_context(|| format!("no {type} record of order {key}"))?;
            seen.insert(place, record.header("traceparent").map(str::to_owned));
        }
        let told: Vec<(String, Option<String>)> =
            sqlx::query_as("select kind, traceparent from notification where order_id = $1 order by seq")
                .bind(self.traced)
                .fetch_all(&self.pools.notifications)
                .await?;
        ensure!(told.len() == 2, "the customer of order {key} was told {} times, not twice", told.len());
        // Of two topics: the order in which they were told of is not promised.
        for (place, kind) in
            [("5 notification of the order", "placed"), ("6 notification of the points", "earned")]
        {
            let told = told
                .iter()
                .find(|(k, _)| k.ends_with(kind))
                .with_context(|| format!("{place} is missing"))?;
            seen.insert(place, told.1.clone());
        }
        let mut rows =
            vec![vec!["0 HTTP request".to_owned(), self.trace_id.clone(), "(the client's)".to_owned()]];
        for (place, traceparent) in seen {
            let text = traceparent.with_context(|| format!("{place}: no traceparent"))?;
            let parts: Vec<&str> = text.split('-').collect();
            ensure!(parts.get(1) == Some(&self.trace_id.as_str()), "{place}: another trace, {text}");
            rows.push(vec![place.to_owned(), parts[1].to_owned(), parts[2].to_owned()]);
        }
        show("One trace", &["where", "trace id", "span id"], rows);
        Ok(())
    }
}

/// Prints a table under its title.
pub(crate) fn show(title: &str, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(header.iter().map(Cell::new));
    for row in rows {
        table.add_row(row);
    }
    println!("{title}\n{table}\n");
}

/// The random end of a UUID, which tells v7 ids of one second apart.
pub(crate) fn tail(id: &str) -> String {
    format!("…{}", &id[id.len().saturating_sub(8)..])
}
