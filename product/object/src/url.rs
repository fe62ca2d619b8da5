//! Where a copy is kept, as a person writes it: `s3://bucket/prefix` or `file:///directory/prefix`.

use crate::bucket::{Bucket, BucketError, BucketErrorKind, DirectoryBucket, in_words};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Where a copy is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Url {
    /// Below a directory, which may not be there yet.
    Directory(PathBuf),
    /// In a bucket of an S3-compatible service, below a prefix.
    S3 {
        /// The bucket.
        bucket: String,
        /// The prefix: not empty, without slashes around it.
        prefix: String,
    },
}

/// Why a text is no URL of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// Its scheme is none of ours, or it has none.
    #[error("it begins neither with s3:// nor with file:///")]
    Scheme,
    /// It names no bucket, or one that cannot be.
    #[error("the bucket's name has 3 to 63 letters, digits, '-' or '.'")]
    Bucket,
    /// It names a whole bucket: a copy needs a prefix of its own.
    #[error("it names no prefix: write s3://BUCKET/VOLUME")]
    Prefix,
    /// The directory is not absolute.
    #[error("the directory is not absolute: write file:///DIRECTORY/VOLUME")]
    Relative,
    /// A part of its path is `.` or `..`.
    #[error("a part of its path is '.' or '..': write where that leads to")]
    Dots,
    /// What follows an `@` in its last part would be the name of a snapshot.
    #[error("it contains '@', behind which the name of a snapshot stands")]
    Snapshot,
    /// A character in it is none that can be printed.
    #[error("it contains a control character")]
    Control,
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Url, UrlError> {
        let url = Url::place(text)?;
        if text.contains('@') { Err(UrlError::Snapshot) } else { Ok(url) }
    }
}

fn parse(text: &str) -> Result<Url, UrlError> {
    if let Some(path) = text.strip_prefix("file://") {
        let path = Path::new(path);
        let is_whole = path.is_absolute() && path.parent().is_some();
        return is_whole.then(|| Url::Directory(path.to_path_buf())).ok_or(UrlError::Relative);
    }
    let rest = text.strip_prefix("s3://").ok_or(UrlError::Scheme)?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(is_letter) {
        return Err(UrlError::Bucket);
    }
    let prefix = prefix.trim_matches('/');
    if prefix.is_empty() {
        return Err(UrlError::Prefix);
    }
    Ok(Url::S3 { bucket: bucket.to_string(), prefix: prefix.to_string() })
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Url::Directory(path) => write!(f, "file://{}", path.display()),
            Url::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
        }
    }
}

impl Url {
    /// The copy at this place, and the name of a snapshot, which stands behind the last `@`.
    ///
    /// # Errors
    /// [`UrlError`].
    pub fn with_snapshot(text: &str) -> Result<(Url, Option<&str>), UrlError> {
        match text.rsplit_once('@') {
            Some((url, name)) => Ok((Url::place(url)?, Some(name))),
            None => Ok((text.parse()?, None)),
        }
    }

    /// A place, which is not judged by what an `@` in it means.
    fn place(text: &str) -> Result<Url, UrlError> {
        let url = parse(text)?;
        if text.chars().any(char::is_control) {
            return Err(UrlError::Control);
        }
        let path = text.split_once("://").map_or("", |(_, path)| path);
        let is_odd = path.split('/').any(|part| [".", ".."].contains(&part));
        if is_odd { Err(UrlError::Dots) } else { Ok(url) }
    }

    /// The places above this one, in which another copy may be: the nearest first.
    pub(crate) fn above(&self) -> Vec<Url> {
        let parts = self.parts().unwrap_or_default();
        let paths = (1..parts.len()).rev().map(|count| parts[..count].join("/"));
        let place = |path: String| match self {
            Url::Directory(_) => Url::Directory(format!("/{path}").into()),
            Url::S3 { bucket, .. } => Url::S3 { bucket: bucket.clone(), prefix: path },
        };
        paths.map(place).collect()
    }

    /// The parts of its path; of a bucket these are behind its name.
    fn parts(&self) -> Option<Vec<&str>> {
        let path = match self {
            Url::Directory(path) => path.to_str()?,
            Url::S3 { prefix, .. } => prefix,
        };
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        // These lead elsewhere than they seem to.
        (!parts.iter().any(|part| [".", ".."].contains(part))).then_some(parts)
    }

    /// The path of this URL as seen from `base`, such as `../vol`; `None` if it is in another bucket, or too long.
    pub fn path_beside(&self, base: &Url) -> Option<String> {
        match (self, base) {
            (Url::Directory(_), Url::Directory(_)) => {}
            (Url::S3 { bucket: one, .. }, Url::S3 { bucket: other, .. }) if one == other => {}
            _ => return None,
        }
        let (own, from) = (self.parts()?, base.parts()?);
        let common = own.iter().zip(&from).take_while(|(one, other)| one == other).count();
        let up = std::iter::repeat_n("..", from.len() - common);
        let path: Vec<&str> = up.chain(own[common..].iter().copied()).collect();
        let path = path.join("/");
        (path.len() <= 255).then_some(path)
    }

    /// The URL to which a path leads from this one.
    ///
    /// # Errors
    /// When it leads nowhere.
    pub fn beside(&self, path: &str) -> Result<Url, BucketError> {
        let nowhere = || {
            let message = format!("the path '{path}' leads nowhere from {self}");
            BucketError::new(BucketErrorKind::NoBucket, message)
        };
        let mut parts = self.parts().ok_or_else(nowhere)?;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            if part == ".." {
                parts.pop().ok_or_else(nowhere)?;
            } else {
                parts.push(part);
            }
        }
        if parts.is_empty() {
            return Err(nowhere());
        }
        let path = parts.join("/");
        Ok(match self {
            Url::Directory(_) => Url::Directory(format!("/{path}").into()),
            Url::S3 { bucket, .. } => Url::S3 { bucket: bucket.clone(), prefix: path },
        })
    }

    /// Opens it. A directory that is not there is made if `create`; the one that it lies in must be.
    ///
    /// # Errors
    /// [`BucketError`].
    pub fn open(&self, create: bool) -> Result<Arc<dyn Bucket>, BucketError> {
        match self {
            Url::Directory(path) => {
                if create
                    && !path.exists()
                    && let Err(error) = coulter_system::private::create_directory(path)
                {
                    let message = format!("{}: {}", path.display(), in_words(&error));
                    let kind = match error.kind() {
                        std::io::ErrorKind::PermissionDenied => BucketErrorKind::Denied,
                        _ => BucketErrorKind::NoBucket,
                    };
                    return Err(BucketError::new(kind, message));
                }
                Ok(Arc::new(DirectoryBucket::open(path)?))
            }
            #[cfg(feature = "s3")]
            Url::S3 { bucket, prefix } => {
                let options = crate::bucket::S3Options::from_environment();
                Ok(Arc::new(crate::bucket::S3Bucket::open(bucket, prefix, &options)?))
            }
            #[cfg(not(feature = "s3"))]
            Url::S3 { .. } => Err(BucketError::new(
                BucketErrorKind::Unsupported,
                "this program was built without support for S3",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_from_one_url_to_another() {
        let url = |text: &str| text.parse::<Url>().expect("a URL");
        for (one, other, path) in [
            ("s3://one/a/vol", "s3://one/a/new", Some("../vol")),
            ("s3://one/vol", "s3://one/a/b/new", Some("../../../vol")),
            ("file:///mnt/a/vol", "file:///mnt/b", Some("../a/vol")),
            ("s3://one/vol", "s3://two/new", None),
            ("s3://one/vol", "file:///one/new", None),
        ] {
            let (one, other) = (url(one), url(other));
            let found = one.path_beside(&other);
            assert_eq!(found.as_deref(), path, "{one} from {other}");
            if let Some(path) = found {
                assert_eq!(other.beside(&path).expect("it leads there"), one);
            }
        }
        url("s3://one/vol").beside("../..").expect_err("it leads nowhere");
    }

    #[test]
    fn what_is_no_url_is_said_to_be_none() {
        let parse = |text: &str| text.parse::<Url>();
        let s3 = Url::S3 { bucket: "one".to_string(), prefix: "two/three".to_string() };
        assert_eq!(parse("s3://one/two/three/"), Ok(s3.clone()));
        assert_eq!(s3.to_string(), "s3://one/two/three");
        assert_eq!(parse("file:///a/b"), Ok(Url::Directory("/a/b".into())));
        assert_eq!(parse("file://a/b"), Err(UrlError::Relative));
        assert_eq!(parse("file:///"), Err(UrlError::Relative));
        assert_eq!(parse("s3://one"), Err(UrlError::Prefix));
        assert_eq!(parse("s3://one//"), Err(UrlError::Prefix));
        assert_eq!(parse("s3://o/two"), Err(UrlError::Bucket));
        assert_eq!(parse("s3://o ne/two"), Err(UrlError::Bucket));
        for text in ["s3://one/../two", "s3://one/./two", "file:///mnt/a/../vol", "file:///mnt/.."]
        {
            assert_eq!(parse(text), Err(UrlError::Dots), "{text}");
        }
        for text in ["s3://one/two@three", "file:///mnt/vol@", "file:///mnt/a@b/vol"] {
            assert_eq!(parse(text), Err(UrlError::Snapshot), "{text}");
        }
        assert_eq!(parse("file:///mnt/a\nb/c"), Err(UrlError::Control));
        parse("file:///mnt/my vol 日本/c").expect("it leads somewhere");
        let above: Vec<String> =
            parse("s3://one/a/b/c").expect("a URL").above().iter().map(Url::to_string).collect();
        assert_eq!(above, ["s3://one/a/b", "s3://one/a"]);
        for text in ["", "one", "/a/b", "http://one/two", "S3://one/two"] {
            assert_eq!(parse(text), Err(UrlError::Scheme), "{text}");
        }
    }
}
