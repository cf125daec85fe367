//! Ranks of an MPI job: a [`kerple_lm::ranks::Communicator`] over any MPI that is installed.
//!
//! MPI carries bytes; it adds nothing up, because the order of its sums is its own affair. All of it is called from the thread
//! that called `join`. A rank that is lost ends the job: the launcher sees to that, and MPI's own errors do.
//!
//! Without the feature `mpi` there is nothing here.

#[cfg(feature = "mpi")]
mod world;

#[cfg(feature = "mpi")]
pub use world::{World, join};
