//go:build tools

// Package tool names the programs that are built of this module.
package tool

import (
	_ "github.com/containernetworking/cni/cnitool"
	_ "github.com/containernetworking/plugins/plugins/ipam/host-local"
)
