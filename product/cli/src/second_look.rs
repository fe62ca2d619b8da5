//! A second look at an error about a name that leads to nothing: it may be a volume whose daemon
//! was killed, one that is attached, or the URL of a copy.

use crate::error::{CliError, CopyError, Error, MountError, OpenError, StateError};
use coulter_daemon::StateDirectory;
use coulter_daemon::killed::Killed;
use std::path::Path;

/// The error that tells more, where there is one.
pub(crate) fn at(error: CliError, state: Option<&StateDirectory>) -> CliError {
    let known = match &error {
        CliError::Service(Error::State(StateError::NotAttached { name, .. })) => {
            killed(name, state)
        }
        CliError::Service(Error::Open(OpenError::StoreMissing { path, .. }))
        | CliError::Mount(MountError::NothingToMount { store: path }) => {
            url(path).or_else(|| attached(path, state)).or_else(|| killed(path.to_str()?, state))
        }
        _ => None,
    };
    known.unwrap_or(error)
}

/// The refusal of a URL where the path of a store belongs.
///
/// # Errors
/// [`CopyError::UrlOfStore`].
pub(crate) fn refuse_url(path: &Path) -> Result<(), CliError> {
    url(path).map_or(Ok(()), Err)
}

fn url(path: &Path) -> Option<CliError> {
    let url = path.to_str()?;
    let is_url = ["s3://", "file://"].iter().any(|scheme| url.starts_with(scheme));
    is_url.then(|| CopyError::UrlOfStore { url: url.to_owned() }.into())
}

/// A path that leads to nothing, and the name of what is attached.
fn attached(path: &Path, state: Option<&StateDirectory>) -> Option<CliError> {
    let entry = state?.find(path.to_str()?).ok()?;
    let (store, name, device) = (entry.store, entry.name, entry.device);
    Some(StateError::AlreadyAttached { store, name, device }.into())
}

fn killed(name: &str, state: Option<&StateDirectory>) -> Option<CliError> {
    let state = state?;
    let entry = state.find_killed(name).ok()??;
    Some(Error::from(Killed::new(state, &entry).error()).into())
}
