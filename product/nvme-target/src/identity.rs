//! What a volume is called in NVMe: names that follow from the store's identity, and stay for ever.

use coulter::service::Identity;

/// The qualified name of the subsystem that a store is served as.
pub fn subsystem_name(identity: &Identity) -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{}", uuid_text(&identity.uuid))
}

/// The qualified name of a host with this identity.
pub fn host_name(host_id: &[u8; 16]) -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{}", uuid_text(host_id))
}

/// A UUID in its usual spelling.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_has_the_same_name_for_ever() {
        let identity = Identity::of_store([0x67; 16], "label");
        let name = "nqn.2014-08.org.nvmexpress:uuid:67676767-6767-6767-6767-676767676767";
        assert_eq!(subsystem_name(&identity), name);
    }
}
