//go:build tools

// Package tool names the program that is built of this module.
package tool

import _ "github.com/containernetworking/cni/cnitool"
