//! Kernels of distance: expressions, proofs, certificates, and their consequences.
//!
//! A relative positional bias adds `k(d)` to the attention score of a query and a key at distance `d = i - j`. KERPLE (Chi
//! et al. 2022, arXiv:2205.09921) asks that `k(|x - x'|)` be *conditionally positive definite* (CPD):
//!
//! ```text
//! sum_ij c_i c_j k(|x_i - x_j|) >= 0    for all points x_1 ... x_N and all c_1 ... c_N that sum to 0.
//! ```
//!
//! Without "that sum to 0" the kernel is *positive definite* (PD), an inner product of feature maps. CPD is less: such a
//! kernel may be negative and fall without bound, as a bias that favours near keys does. It is enough, because softmax
//! ignores a constant added to all scores of a row, and on a finite set of positions a CPD kernel is a PD kernel minus a
//! constant wherever it is strictly CPD ([`certificate`] proves it, and shows where the paper's Lemma 1 says too much).
//!
//! # From text to a table
//!
//! ```
//! use kerple_core::calculus::expr::Expr;
//!
//! let kernel = Expr::parse("log(b, a) + 0.5*power(a~0.1, p=1)")?;
//! let names: Vec<_> = kernel.parameters().into_iter().map(|p| p.name).collect();
//! assert_eq!(names, ["b", "log.a", "power.a"]);
//! let two_heads = [1.0, 0.5, 0.1, /* head 1 */ 2.0, 0.1, 0.3 /* head 2 */];
//! let table = kernel.table(&two_heads, 2, 16); // [H, L]
//! assert_eq!(table[0], 0.0);
//! # Ok::<(), kerple_core::calculus::parse::ParseError>(())
//! ```
//!
//! # Knowing that it is sound
//!
//! An expression is closed under the operations that keep a kernel CPD, so [parsing](parse) it is proving it, for all
//! points and all values of what is learned. [`rules`] prints the proof.
//!
//! ```
//! use kerple_core::calculus::expr::Expr;
//!
//! let proof = Expr::parse("-(-log(b, a))^0.5")?.derivation();
//! assert_eq!(proof.class.to_string(), "strictly conditionally positive definite");
//! println!("{proof}");
//! // the product of two biases is not a bias, and the error says which part and why
//! assert!(Expr::parse("power(a, 1)*log(b, 1)").unwrap_err().to_string().contains("positive definite members"));
//! # Ok::<(), kerple_core::calculus::parse::ParseError>(())
//! ```
//!
//! # Where to look
//!
//! [`base`] functions and their derivatives; [`function`]s an expression can call; the [grammar](parse);
//! [`expr`]essions with values, gradients and tables; learned [`parameter`]s; [`rules`] and proofs; [`points`] and
//! [`certificate`]s by eigenvalues; the [`geometry`] that follows: embeddings, feature maps, reach; and
//! [`report`], all of it from text to answer.

pub mod base;
pub mod certificate;
pub mod error;
pub mod exponentials;
pub mod expr;
pub mod function;
pub mod geometry;
mod linalg;
pub mod linear;
pub mod parameter;
pub mod parse;
pub mod points;
mod program;
pub mod report;
pub mod rules;
#[cfg(test)]
mod tests;
