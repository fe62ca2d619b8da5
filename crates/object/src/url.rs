//! Where a copy is kept, as a person writes it: `s3://bucket/prefix` or `file:///directory/prefix`.

use crate::bucket::{Bucket, BucketError, BucketErrorKind, DirectoryBucket};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlError {
    /// Its scheme is none of ours, or it has none.
    Scheme,
    /// It names no bucket, or one that cannot be.
    Bucket,
    /// It names a whole bucket: a copy needs a prefix of its own.
    Prefix,
    /// The directory is not absolute.
    Relative,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UrlError::Scheme => "it begins neither with s3:// nor with file:///",
            UrlError::Bucket => "the bucket's name has 3 to 63 letters, digits, '-' or '.'",
            UrlError::Prefix => "it names no prefix: write s3://BUCKET/VOLUME",
            UrlError::Relative => "the directory is not absolute: write file:///DIRECTORY/VOLUME",
        })
    }
}

impl std::error::Error for UrlError {}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Url, UrlError> {
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
    /// Opens it. A directory that is not there is made if `create`; the one that it lies in must be.
    ///
    /// # Errors
    /// [`BucketError`].
    pub fn open(&self, create: bool) -> Result<Arc<dyn Bucket>, BucketError> {
        match self {
            Url::Directory(path) => {
                if create
                    && !path.is_dir()
                    && let Err(error) = std::fs::create_dir(path)
                {
                    let message = format!("{}: {error}", path.display());
                    return Err(BucketError::new(BucketErrorKind::NoBucket, message));
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
        for text in ["", "one", "/a/b", "http://one/two", "S3://one/two"] {
            assert_eq!(parse(text), Err(UrlError::Scheme), "{text}");
        }
    }
}
