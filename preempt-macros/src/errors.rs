//! Errors that are reported together.

use quote::ToTokens;
use syn::{Error, Result};

/// The errors that were found so far. A user sees all of them at once.
#[derive(Default)]
pub struct Errors(Option<Error>);

impl Errors {
    /// Adds an error that points at all of `tokens`.
    pub fn push(&mut self, tokens: impl ToTokens, message: impl std::fmt::Display) {
        self.add(Error::new_spanned(tokens, message));
    }

    pub fn add(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            none => *none = Some(error),
        }
    }

    /// The value; its error is added.
    pub fn take<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.add(error)).ok()
    }

    pub fn finish(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

/// Both values, or the errors of both.
pub fn both<A, B>(a: Result<A>, b: Result<B>) -> Result<(A, B)> {
    match (a, b) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
        (Err(mut first), Err(second)) => {
            first.combine(second);
            Err(first)
        }
    }
}
