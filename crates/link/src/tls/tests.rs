//! An authority for tests, and what certificates come to between two nodes of a simulated world.

mod authority;
mod streams;
