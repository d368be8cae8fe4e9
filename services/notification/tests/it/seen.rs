//! What was delivered on the log channel, and the spans it was delivered in, for the whole test binary.

use std::fmt::Debug;
use std::sync::{Condvar, LazyLock, Mutex};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, Span, SpanData, SpanProcessor};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use uuid::Uuid;

/// One line of the log channel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) order_id: String,
    pub(crate) notification_id: String,
    pub(crate) seq: i64,
    pub(crate) kind: String,
    pub(crate) body: String,
}

static DELIVERIES: Mutex<Vec<Delivery>> = Mutex::new(Vec::new());
/// Order whose next delivery is held up on its way, and whether one is.
static HELD: Mutex<(Option<Uuid>, bool)> = Mutex::new((None, false));
static RELEASED: Condvar = Condvar::new();
static SPANS: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

static WATCH: LazyLock<()> = LazyLock::new(|| {
    let provider = SdkTracerProvider::builder().with_span_processor(Spans).build();
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let deliveries =
        Deliveries.with_filter(filter_fn(|event| event.target() == "waybill_notification::delivery"));
    let subscriber = tracing_subscriber::registry().with(spans).with(deliveries);
    tracing::subscriber::set_global_default(subscriber).expect("the only one");
});

/// Starts to watch.
pub(crate) fn watch() {
    LazyLock::force(&WATCH);
}

/// What was delivered of an order, in order.
pub(crate) fn deliveries(order: Uuid) -> Vec<Delivery> {
    let all = DELIVERIES.lock().expect("not poisoned");
    all.iter().filter(|delivery| delivery.order_id == order.to_string()).cloned().collect()
}

/// Holds up the next delivery of an order, with the thread that makes it.
pub(crate) fn hold(order: Uuid) {
    *HELD.lock().expect("not poisoned") = (Some(order), false);
}

/// Whether that delivery has begun.
pub(crate) fn is_held() -> bool {
    HELD.lock().expect("not poisoned").1
}

/// Lets it go on.
pub(crate) fn release() {
    HELD.lock().expect("not poisoned").1 = false;
    RELEASED.notify_all();
}

/// Names of the ended spans of a trace.
pub(crate) fn spans(trace: &str) -> Vec<String> {
    let all = SPANS.lock().expect("not poisoned");
    all.iter().filter(|(of, _)| of == trace).map(|(_, name)| name.clone()).collect()
}

struct Deliveries;

impl<S: Subscriber> Layer<S> for Deliveries {
    fn on_event(&self, event: &Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let mut delivery = Delivery::default();
        event.record(&mut delivery);
        let mut held = HELD.lock().expect("not poisoned");
        if held.0.is_some_and(|order| order.to_string() == delivery.order_id) {
            *held = (None, true);
            // The thread's other tasks go elsewhere: only this delivery is held up.
            let wait = || RELEASED.wait_while(held, |(_, held)| *held).map(drop);
            tokio::task::block_in_place(wait).expect("not poisoned");
        } else {
            drop(held);
        }
        DELIVERIES.lock().expect("not poisoned").push(delivery);
    }
}

impl Visit for Delivery {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let value = format!("{value:?}");
        match field.name() {
            "order_id" => self.order_id = value,
            "notification_id" => self.notification_id = value,
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "kind" => self.kind = value.to_owned(),
            "body" => self.body = value.to_owned(),
            _ => {}
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        if field.name() == "seq" {
            self.seq = value;
        }
    }
}

#[derive(Debug)]
struct Spans;

impl SpanProcessor for Spans {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        let trace = span.span_context.trace_id().to_string();
        SPANS.lock().expect("not poisoned").push((trace, span.name.into_owned()));
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}
