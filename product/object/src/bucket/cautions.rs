//! What the owner of a bucket of S3 may have set that costs money or destroys a copy.

/// What is said of a bucket whose configuration of a kind is what `read` returns, and of names with a prefix in it.
pub(super) fn of(read: &dyn Fn(&str) -> Option<String>, prefix: &str) -> Vec<String> {
    let configuration = |kind| read(kind).unwrap_or_default();
    let mut found = Vec::new();
    if between(&configuration("versioning"), "Status").any(|status| status == "Enabled") {
        found.push(
            "the bucket keeps versions: deleted objects still cost money, unless a lifecycle rule expires \
             noncurrent versions"
                .to_owned(),
        );
    }
    let lock = configuration("object-lock");
    if between(&lock, "ObjectLockEnabled").any(|status| status == "Enabled") {
        found.push(
            "the bucket locks objects: they stay, and cost money, for as long as it retains them"
                .to_owned(),
        );
    }
    for rule in between(&configuration("lifecycle"), "Rule") {
        let is_on = between(rule, "Status").any(|status| status == "Enabled");
        // A rule without a prefix is for every object.
        let of = between(rule, "Prefix").next().unwrap_or_default();
        let concerns_us = prefix.starts_with(of) || of.starts_with(prefix);
        if !is_on || !concerns_us {
            continue;
        }
        let name = between(rule, "ID").next().unwrap_or("without a name");
        // One that only removes the marks of deletions does no harm.
        let expires = |it: &str| it.contains("<Days>") || it.contains("<Date>");
        if between(rule, "Expiration").any(expires) {
            found.push(format!(
                "the lifecycle rule '{name}' deletes objects: it will destroy the copy"
            ));
        }
        if between(rule, "Transition").next().is_some() {
            found.push(format!(
                "the lifecycle rule '{name}' moves objects to another storage class, from which they may not be \
                 readable at once"
            ));
        }
    }
    found
}

/// What stands in each of the elements of a name. Neither of the answers read here has an element within one of its own
/// name, nor attributes but in the outermost.
fn between<'a>(text: &'a str, element: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let (begin, end) = (format!("<{element}>"), format!("</{element}>"));
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, behind) = rest.split_once(&begin)?;
        let (inner, behind) = behind.split_once(&end)?;
        rest = behind;
        Some(inner.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(kind: &'static str, text: &'static str) -> Vec<String> {
        of(&|asked| (asked == kind).then(|| text.to_owned()), "vol/")
    }

    #[test]
    fn what_harms_a_copy_is_told_and_nothing_else() {
        let status = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
        assert!(said("versioning", status)[0].contains("keeps versions"));
        for harmless in
            ["", "<VersioningConfiguration/>", "<Status>Suspended</Status>", "<Status>Enabled"]
        {
            assert!(said("versioning", harmless).is_empty(), "{harmless}");
        }
        let lock = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>";
        assert!(said("object-lock", lock)[0].contains("locks objects"));
        assert!(of(&|_| None, "vol/").is_empty(), "what may not be read is not told");
    }

    #[test]
    fn of_lifecycle_rules_those_are_told_that_concern_the_copy() {
        let rule = |status: &str, of: &str, does: &str| {
            let filter = format!("<Filter><Prefix>{of}</Prefix></Filter>");
            let text = format!(
                "<LifecycleConfiguration><Rule><ID>old</ID>{filter}<Status>{status}</Status>{does}</Rule>\
                 </LifecycleConfiguration>"
            );
            super::of(&|kind| (kind == "lifecycle").then(|| text.clone()), "vol/").len()
        };
        let expires = "<Expiration><Days>30</Days></Expiration>";
        let moves = "<Transition><Days>30</Days><StorageClass>GLACIER</StorageClass></Transition>";
        for of in ["", "vol/", "vol/d/", "v"] {
            assert_eq!(rule("Enabled", of, expires), 1, "{of}");
            assert_eq!(rule("Enabled", of, moves), 1, "{of}");
        }
        assert_eq!(rule("Disabled", "", expires), 0);
        assert_eq!(rule("Enabled", "other/", expires), 0);
        let tidies = "<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration>\
                      <AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation></AbortIncompleteMultipartUpload>";
        assert_eq!(rule("Enabled", "", tidies), 0, "it does no harm");
    }
}
