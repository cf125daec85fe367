//! Ranks of an MPI job: a [`kerple_lm::ranks::Communicator`] over any MPI that is installed.
//!
//! MPI only transports bytes; it adds nothing, because it does not define the order of its sums.
//! All calls come from the thread that called `join`. A lost rank ends the job, through the
//! launcher and MPI's own errors.
//!
//! Without the feature `mpi` this crate is empty.

#[cfg(feature = "mpi")]
mod world;

#[cfg(feature = "mpi")]
pub use world::{World, join};
