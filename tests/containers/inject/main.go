// Reads an OCI configuration on standard input, checks the CDI specifications of a directory against their own schema, gives the
// container the named device as an engine does, and prints the configuration that comes of it.
//
//	inject DIRECTORY DEVICE < config.json
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/schema"
)

func main() {
	if err := inject(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "inject:", err)
		os.Exit(1)
	}
}

func inject(directory, device string) error {
	rules, err := schema.Load(schema.BuiltinSchemaName)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(directory, "*.json"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := rules.ValidateFile(file); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(directory), cdi.WithAutoRefresh(false))
	if err != nil {
		return err
	}
	for file, errors := range cache.GetErrors() {
		return fmt.Errorf("%s: %v", file, errors)
	}
	var configuration oci.Spec
	if err := json.NewDecoder(os.Stdin).Decode(&configuration); err != nil {
		return err
	}
	if unresolved, err := cache.InjectDevices(&configuration, device); err != nil {
		return fmt.Errorf("%v: %w", unresolved, err)
	}
	return json.NewEncoder(os.Stdout).Encode(&configuration)
}
