//! What the gateway tells of itself: Prometheus metrics, and an activity log that explains every wait.

mod activity;
mod families;
mod metrics;
mod own_log;
mod pools;
mod tenants;
mod usage;

pub use activity::{
    ActivityLog, ActivityRecord, Explanation, Filter, FilterError, Group, LogExtent, Neighbour, OpenError, Order, Page,
    PassedBy, QueryError, Reason, Term,
};
pub use metrics::{CONTENT_TYPE, Metrics, ScrapeState};
pub use own_log::OwnLog;
pub use pools::PoolState;
pub use usage::{TokenUsage, UsageScanner};
