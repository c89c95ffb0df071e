//! Makes the calls of the kubelet's interface, version v1beta1, of their description here, so that no compiler of protocol buffers
//! is needed; `src/interface.rs` has the messages.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let call = |name: &str, route: &str, input: &str, output: &str| {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type(format!("crate::interface::{input}"))
            .output_type(format!("crate::interface::{output}"))
            .codec_path("tonic_prost::ProstCodec")
    };
    let registration = Service::builder()
        .package("v1beta1")
        .name("Registration")
        .method(call("register", "Register", "RegisterRequest", "Empty").build())
        .build();
    let list = call("list_and_watch", "ListAndWatch", "Empty", "DeviceList");
    let plugin = Service::builder()
        .package("v1beta1")
        .name("DevicePlugin")
        .method(
            call(
                "options",
                "GetDevicePluginOptions",
                "Empty",
                "PluginOptions",
            )
            .build(),
        )
        .method(list.server_streaming().build())
        .method(
            call(
                "allocate",
                "Allocate",
                "AllocateRequest",
                "AllocateResponse",
            )
            .build(),
        )
        .build();
    Builder::new().compile(&[registration, plugin]);
    println!("cargo::rerun-if-changed=build.rs");
}
