//! The file of the keys of NVMe hosts.

use crate::error::{CliError, SystemError};
use coulter_nvme_target::{Group, Keys};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes of the longest file of keys.
const SIZE_MAX: u64 = 1 << 20;
/// Permissions of everybody but the owner.
const OF_OTHERS: u32 = 0o077;

/// Groups by the names that `nvme connect` and Linux have for them.
pub(crate) const GROUPS: [(&str, Group); 4] = [
    ("null", Group::Null),
    ("ffdhe2048", Group::Ffdhe2048),
    ("ffdhe3072", Group::Ffdhe3072),
    ("ffdhe4096", Group::Ffdhe4096),
];

/// Reads keys from a file that only its owner can read.
///
/// # Errors
/// [`SystemError::KeysRefused`], with the reason.
pub(crate) fn read(path: &Path, group: Group) -> Result<Keys, CliError> {
    let refused = |reason: String| SystemError::KeysRefused { path: path.to_owned(), reason };
    let file = File::open(path).map_err(|error| refused(error.to_string()))?;
    let metadata = file.metadata().map_err(|error| refused(error.to_string()))?;
    if metadata.mode() & OF_OTHERS != 0 {
        return Err(refused("users other than its owner have access to it".to_owned()).into());
    }
    let mut text = String::new();
    let read = file.take(SIZE_MAX).read_to_string(&mut text);
    read.map_err(|error| refused(error.to_string()))?;
    Keys::parse(&text, group).map_err(|error| refused(error.to_string()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let path = std::env::temp_dir().join(format!("coulter-keys-{}", std::process::id()));
        let key = "DHHC-1:00:sNRJqR6+NG0/ZXUFDeMqonMe+rt/et8u6uSLpsZSzzo1fbl3:";
        let outcome = |text: &str, mode| {
            write(&path, text).expect("there is room");
            set_permissions(&path, Permissions::from_mode(mode)).expect("it is ours");
            read(&path, Group::Null).map_err(|error| error.report().to_string())
        };
        let right = outcome(&format!("* {key}\n"), 0o600);
        let open = outcome(&format!("* {key}\n"), 0o640).expect_err("others can read it");
        let wrong = outcome("* DHHC-1\n", 0o600).expect_err("it is no key");
        std::fs::remove_file(&path).expect("it is there");
        assert!(right.is_ok());
        assert!(open.contains("chmod 600"), "{open}");
        assert!(wrong.contains("line 1"), "{wrong}");
        let missing = read(&path, Group::Null).expect_err("it is gone").report().to_string();
        assert!(missing.contains("No such file"), "{missing}");
    }
}
