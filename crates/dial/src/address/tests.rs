use super::*;

fn class(address: &str) -> Class {
    Class::of(address.parse().unwrap())
}

#[test]
fn every_class_has_its_borders() {
    for (address, expected) in [
        ("1.1.1.1", Class::Public),
        ("9.255.255.255", Class::Public),
        ("10.0.0.0", Class::Private),
        ("10.255.255.255", Class::Private),
        ("11.0.0.0", Class::Public),
        ("172.15.255.255", Class::Public),
        ("172.16.0.0", Class::Private),
        ("172.31.255.255", Class::Private),
        ("172.32.0.0", Class::Public),
        ("192.168.1.1", Class::Private),
        ("100.63.255.255", Class::Public),
        ("100.64.0.0", Class::Shared),
        ("100.127.255.255", Class::Shared),
        ("100.128.0.0", Class::Public),
        ("127.0.0.1", Class::Loopback),
        ("127.255.255.254", Class::Loopback),
        ("169.254.0.1", Class::LinkLocal),
        ("169.254.169.254", Class::Metadata),
        ("0.0.0.0", Class::Unspecified),
        ("0.1.2.3", Class::Unspecified),
        ("192.0.0.1", Class::Reserved),
        ("192.0.2.1", Class::Documentation),
        ("198.17.255.255", Class::Public),
        ("198.18.0.0", Class::Benchmark),
        ("198.19.255.255", Class::Benchmark),
        ("198.20.0.0", Class::Public),
        ("224.0.0.1", Class::Multicast),
        ("240.0.0.1", Class::Reserved),
        ("255.255.255.255", Class::Reserved),
        ("::", Class::Unspecified),
        ("::1", Class::Loopback),
        ("2606:4700::1111", Class::Public),
        ("fc00::1", Class::UniqueLocal),
        ("fdff::1", Class::UniqueLocal),
        ("fd00:ec2::254", Class::Metadata),
        ("fe80::1", Class::LinkLocal),
        ("febf::1", Class::LinkLocal),
        ("fec0::1", Class::Reserved),
        ("ff02::1", Class::Multicast),
        ("2001:db8::1", Class::Documentation),
        ("3fff::1", Class::Documentation),
        ("2001:2::1", Class::Benchmark),
        ("2001:20::1", Class::Reserved),
        ("2001:200::1", Class::Public),
        ("100::1", Class::Reserved),
        ("64:ff9b:1::a00:1", Class::Reserved),
        ("4000::1", Class::Reserved),
    ] {
        assert_eq!(class(address), expected, "{address}");
    }
}

#[test]
fn what_carries_an_address_is_judged_by_it() {
    for (address, expected) in [
        ("::ffff:169.254.169.254", Class::Metadata),
        ("::ffff:10.0.0.1", Class::Private),
        ("::ffff:8.8.8.8", Class::Public),
        ("::127.0.0.1", Class::Loopback),
        ("::0.0.0.2", Class::Unspecified),
        ("::ffff:0:10.0.0.1", Class::Private),
        ("64:ff9b::a9fe:a9fe", Class::Metadata),
        ("64:ff9b::808:808", Class::Public),
        ("2002:a9fe:a9fe::", Class::Metadata),
        ("2002:7f00:1::1", Class::Loopback),
        // Teredo: server 10.0.0.1, client 8.8.8.8; then server 8.8.8.8, client 169.254.169.254; then both public.
        ("2001:0:a00:1:0:0:f7f7:f7f7", Class::Private),
        ("2001:0:808:808:0:0:5601:5601", Class::Metadata),
        ("2001:0:808:808:0:0:f7f7:f7f7", Class::Public),
        ("2606:4700::5efe:10.0.0.1", Class::Private),
        ("2606:4700::200:5efe:127.0.0.1", Class::Loopback),
        ("2606:4700::5efe:8.8.8.8", Class::Public),
        // A prefix that is not public leads where it leads, whatever the rest says.
        ("fd00::5efe:8.8.8.8", Class::UniqueLocal),
        ("fd00::200:5efe:8.8.8.8", Class::UniqueLocal),
        ("fe80::5efe:8.8.8.8", Class::LinkLocal),
        ("ff02::5efe:8.8.8.8", Class::Multicast),
    ] {
        assert_eq!(class(address), expected, "{address}");
    }
}
