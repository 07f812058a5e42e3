//! The scheduler seen from outside: events in, actions out, time by hand.

mod admission;
mod callers;
mod failure;
mod fairness;
mod fifo;
mod fleet;
mod flow;
mod matrix;
mod pools;
mod priority;
mod properties;
mod serial;
mod shell;
mod steps;
mod swap;
mod yard;
