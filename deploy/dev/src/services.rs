//! The services: names, ports, settings and the order in which they start and stop.

use std::{
    env,
    ffi::OsString,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    time::Duration,
};

use crate::status::Database;

/// The features of every build of this tool. One list, so that services, tests and lints share one build.
pub(crate) const FEATURES: &str = "waybill-order/failpoints,waybill-relay/failpoints,waybill-point/failpoints,waybill-notification/failpoints,waybill-console/failpoints,waybill-task/failpoints";

/// What says how to speak to brokers, and with which secret.
const KAFKA_SECURITY: [&str; 6] = [
    "KAFKA_SECURITY_PROTOCOL",
    "KAFKA_SSL_CA",
    "KAFKA_SASL_MECHANISM",
    "KAFKA_SASL_USERNAME",
    "KAFKA_SASL_PASSWORD",
    "KAFKA_SASL_PASSWORD_FILE",
];

/// Variables that lead a service to some server: no process of a stack inherits them, each is told by [`Settings`].
pub(crate) fn leading() -> impl Iterator<Item = &'static str> {
    const ADDRESSES: [&str; 7] = [
        "DATABASE_URL",
        "DATABASE_URL_FILE",
        "RELAY_SOURCES",
        "RELAY_SOURCES_FILE",
        "KAFKA_BOOTSTRAP",
        "TOPIC_PREFIX",
        "JWT_JWKS_URL",
    ];
    ADDRESSES.into_iter().chain(KAFKA_SECURITY)
}

/// How far above its API a service's metrics are.
pub(crate) const METRICS_ABOVE: u16 = 1000;

/// A service of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    Order,
    Point,
    Notification,
    Relay,
    Console,
}

impl Service {
    /// In the order in which they migrate and start.
    pub(crate) const ALL: [Self; 5] =
        [Self::Order, Self::Point, Self::Notification, Self::Relay, Self::Console];

    /// As in `status` and the log's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::Point => "point",
            Self::Notification => "notification",
            Self::Relay => "relay",
            Self::Console => "console",
        }
    }

    /// The executable.
    pub(crate) fn binary(self) -> &'static str {
        match self {
            Self::Order => "waybill-order",
            Self::Point => "waybill-point",
            Self::Notification => "waybill-notification",
            Self::Relay => "waybill-relay",
            Self::Console => "waybill-console",
        }
    }

    /// The documented port.
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Order => 8080,
            Self::Point => 8081,
            Self::Notification => 8082,
            Self::Console => 8083,
            Self::Relay => 8084,
        }
    }
}

/// What the services are told.
#[derive(Debug)]
pub(crate) struct Settings<'a> {
    pub(crate) database: &'a Database,
    pub(crate) bootstrap: &'a str,
    /// The brokers are the user's, and so is what the environment says of their security.
    pub(crate) given_kafka: bool,
    pub(crate) topic_prefix: &'a str,
    pub(crate) jwt: &'a Path,
    /// Where each service's API is, in the order of the ports given out.
    pub(crate) apis: &'a [(Service, u16)],
}

impl Settings<'_> {
    /// The environment of one service listening on `port`.
    pub(crate) fn of(&self, service: Service, port: u16) -> Vec<(&'static str, OsString)> {
        let mut env: Vec<(&'static str, OsString)> = vec![
            ("KAFKA_BOOTSTRAP", self.bootstrap.into()),
            ("TOPIC_PREFIX", self.topic_prefix.into()),
            ("HTTP_LISTEN", format!("127.0.0.1:{port}").into()),
            ("METRICS_LISTEN", format!("127.0.0.1:{}", port + METRICS_ABOVE).into()),
            ("JWT_JWKS_FILE", self.jwt.join("jwks.json").into()),
            ("LOG_FORMAT", "json".into()),
            ("RUST_LOG", env::var_os("RUST_LOG").unwrap_or_else(|| "info".into())),
        ];
        if self.given_kafka {
            env.extend(KAFKA_SECURITY.iter().filter_map(|name| Some((*name, env::var_os(name)?))));
        }
        // All scheduled jobs; the bare binaries have them off.
        match service {
            Service::Order => env.push(("JOBS", "purge-idempotency-keys".into())),
            Service::Point => env.push(("JOBS", "purge-inbox".into())),
            Service::Notification => env.push(("JOBS", "purge-inbox,purge-tasks".into())),
            Service::Console => {
                env.push(("JOBS", "purge-console".into()));
                env.push(("CONSOLE_SERVICES", self.consumers().into()));
            }
            Service::Relay => {}
        }
        env.push(match service {
            Service::Order => ("DATABASE_URL", self.database.orders.clone().into()),
            Service::Point => ("DATABASE_URL", self.database.points.clone().into()),
            Service::Notification => ("DATABASE_URL", self.database.notifications.clone().into()),
            Service::Console => ("DATABASE_URL", self.database.console.clone().into()),
            Service::Relay => ("RELAY_SOURCES", self.sources().into()),
        });
        env
    }

    /// The services that consume, for the console.
    fn consumers(&self) -> String {
        let consumes = |service: &Service| matches!(service, Service::Point | Service::Notification);
        let apis = self.apis.iter().filter(|(service, _)| consumes(service));
        let apis: Vec<_> =
            apis.map(|(service, port)| format!("{}=http://127.0.0.1:{port}", service.name())).collect();
        apis.join(",")
    }

    fn sources(&self) -> String {
        format!("order={},point={}", self.database.orders, self.database.points)
    }
}

/// Whether `/readyz` on a port says 200.
pub(crate) fn is_ready(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let patience = Duration::from_secs(2);
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut start = [0; 12];
        stream.read_exact(&mut start)?;
        Ok(&start == b"HTTP/1.1 200")
    };
    ask().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_relay_reads_both_outboxes_and_has_no_database_of_its_own() {
        let url = |name: &str| format!("postgres://h/{name}");
        let database = Database {
            admin_url: url("postgres"),
            orders: url("orders"),
            points: url("points"),
            notifications: url("notifications"),
            console: url("console"),
        };
        let apis = [(Service::Order, 8080), (Service::Point, 8081), (Service::Notification, 8082)];
        let jwt = Path::new("/jwt");
        let settings = Settings {
            database: &database,
            bootstrap: "b:1",
            given_kafka: false,
            topic_prefix: "",
            jwt,
            apis: &apis,
        };
        let env = settings.of(Service::Relay, 8084);
        assert!(
            env.contains(&("RELAY_SOURCES", "order=postgres://h/orders,point=postgres://h/points".into()))
        );
        assert!(env.contains(&("METRICS_LISTEN", "127.0.0.1:9084".into())));
        assert!(!env.iter().any(|(name, _)| *name == "DATABASE_URL"));
        let consumers = "point=http://127.0.0.1:8081,notification=http://127.0.0.1:8082";
        assert!(settings.of(Service::Console, 8083).contains(&("CONSOLE_SERVICES", consumers.into())));
    }
}
