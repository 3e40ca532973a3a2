//! Collects trace events: what was passed, in which order.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, span};

/// What was passed: a message, and the fields by name.
#[derive(Clone, Default, Debug)]
pub struct Passed {
    pub message: String,
    #[allow(dead_code, reason = "not every test looks at them")]
    pub fields: Vec<(&'static str, String)>,
}

/// Events of some targets, in the order in which they were passed.
#[derive(Clone)]
pub struct Stages {
    targets: &'static [&'static str],
    passed: Arc<Mutex<Vec<Passed>>>,
}

impl Stages {
    pub fn of(targets: &'static [&'static str]) -> Stages {
        Stages { targets, passed: Arc::default() }
    }

    /// What was passed since the last call.
    pub fn take(&self) -> Vec<Passed> {
        std::mem::take(&mut *self.passed.lock().unwrap())
    }

    /// The messages of it.
    #[allow(dead_code, reason = "not every test has use for it")]
    pub fn messages(&self) -> Vec<String> {
        self.take().into_iter().map(|passed| passed.message).collect()
    }
}

impl Visit for Passed {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.fields.push((name, format!("{value:?}"))),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.push((field.name(), value.to_owned()));
    }
}

impl tracing::Subscriber for Stages {
    /// To be asked each time: tests of one process collect different things at a time.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.targets.contains(&metadata.target())
    }

    fn event(&self, event: &Event<'_>) {
        let mut passed = Passed::default();
        event.record(&mut passed);
        self.passed.lock().unwrap().push(passed);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
